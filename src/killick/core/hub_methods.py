"""The methods of Hugging Face models: `save_pretrained`, `from_pretrained` and `push_to_hub`.

They call `killick.save`, `killick.load` and `killick.publish`, so there is one format.
"""

import os
import pkgutil
import tempfile
from pathlib import Path
from typing import Any, Self

from torch import nn

from killick.errors import StorageError


class PretrainedMixin:
    """Saving, loading and publishing as methods of a model."""

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *,
        repo_id: str | None = None,
        push_to_hub: bool = False,
        **options: Any,
    ) -> str | None:
        """Save the model into a folder, as `killick.save`, and with `push_to_hub` publish it too.

        `repo_id`, `owner/name`, and further options are those of `push_to_hub`, whose result is
        returned.
        """
        import killick

        assert isinstance(self, nn.Module)
        killick.save(self, save_directory)
        if not push_to_hub:
            return None
        return self.push_to_hub(repo_id or Path(save_directory).name, **options)

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        net: nn.Module | None = None,
        device: str = "cpu",
    ) -> Self:
        """The model of a folder or of `owner/name` on the hub, in eval mode, as `killick.load`."""
        import killick

        name = pretrained_model_name_or_path
        found = killick.load(name, net, revision=revision, device=device)
        if not isinstance(found, cls):
            raise StorageError(
                f"{os.fspath(name)} holds a model of the kind {type(found).__name__}, not"
                f" {cls.__name__}. Load either kind: killick.load."
            )
        return found

    def push_to_hub(
        self, repo_id: str, *, private: bool = False, license: str | None = None
    ) -> str:
        """Publish the model with its card at `owner/name` on the hub; the address of the commit.

        The stored references, usually training images, are published with it.
        """
        import killick

        assert isinstance(self, nn.Module)
        push = pkgutil.resolve_name("killick.deploy.publisher:push")
        with tempfile.TemporaryDirectory() as folder:
            killick.publish(self, Path(folder) / "model", repo=repo_id, license=license)
            return str(push(Path(folder) / "model", repo_id, private=private))
