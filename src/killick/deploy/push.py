"""Sending a published folder to the Hugging Face hub."""

from pathlib import Path

from killick.deploy.publisher import FILES
from killick.errors import StorageError
from killick.storage.hub import explain, import_client


def check_pushable(repo: str) -> None:
    """Refuse before any work is done, if the hub's client is not installed."""
    import_client(f"to push {repo}")


def push(folder: Path, repo: str, *, private: bool = False) -> str:
    """Make the place on the hub, if it is not there, and send the folder's files to it.

    Args:
        folder: As `publish` wrote it.
        repo: `owner/name`.
        private: Whether a place that is made now is for its owner alone. One that is there stays
            as it is.

    Returns:
        The address of what was sent.

    Raises:
        InstallError: If the hub's client is not installed.
        StorageError: If the hub does not take it.
    """
    client = import_client(f"to push {repo}")
    try:
        api = client.HfApi(library_name="killick")
        api.create_repo(repo, repo_type="model", private=private, exist_ok=True)
        sent = api.upload_folder(
            repo_id=repo,
            repo_type="model",
            folder_path=str(folder),
            allow_patterns=sorted(FILES),
            delete_patterns=sorted(FILES),  # of these, what was there before and is not sent now
            commit_message="Publish with Killick",
        )
    except Exception as problem:  # of the client, of what it sends with, of the file system
        raise StorageError(
            f"cannot push to {repo}: {explain(problem)}. The folder is written: {folder}."
        ) from problem
    return str(sent)
