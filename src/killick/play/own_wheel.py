"""The wheel of the Killick that runs, from its installed files: no index has it to install from."""

import base64
import hashlib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import killick
from killick.errors import InstallError

_WHEEL = "Wheel-Version: 1.0\nGenerator: killick\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_COPIED = ("METADATA", "entry_points.txt", "licenses/LICENSE")


def find_distribution() -> Distribution:
    """What is installed as Killick."""
    try:
        return distribution("killick")
    except PackageNotFoundError:
        raise InstallError(
            "a Space needs the wheel of Killick, and Killick is not installed, only imported."
            " Install it: pip install -e . in your clone."
        ) from None


def write_wheel(folder: Path) -> Path:
    """Write `killick-VERSION-py3-none-any.whl`; the same files give the same bytes."""
    found, package = find_distribution(), Path(killick.__file__).parent
    info = f"killick-{found.version}.dist-info"
    contents = {
        f"killick/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and path.parent.name != "__pycache__"
    }
    contents |= {f"{info}/{name}": (found.read_text(name) or "").encode() for name in _COPIED}
    contents[f"{info}/WHEEL"] = _WHEEL.encode()
    record = [f"{name},sha256={_digest(each)},{len(each)}\n" for name, each in contents.items()]
    contents[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"]).encode()
    wheel = folder / f"killick-{found.version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for name, each in contents.items():
            file.writestr(zipfile.ZipInfo(name), each, zipfile.ZIP_DEFLATED)
    return wheel


def find_requirements(*extras: str) -> list[str]:
    """The libraries that Killick needs, also with extras, as lines of `requirements.txt`."""
    found = []
    for line in find_distribution().requires or ():
        library, _, marker = line.partition(";")
        if not marker or any(f"extra == '{extra}'" in marker.replace('"', "'") for extra in extras):
            found.append(library.strip())
    return found


def _digest(contents: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(contents).digest()).rstrip(b"=").decode()
