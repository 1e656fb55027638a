"""Runs this folder's tests, also where only torch, triton and pytest are installed.

It names what the repository's own pytest settings would (mode, marker, path) instead of reading
them, since those also ask for plugins that a bare GPU machine lacks. Further arguments go to
pytest.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PARTS = ("api", "guests", "hypervisor", "migrations", "store")


def main() -> int:
    root = HERE.parent.parent
    package = root / ".dev" / "statevisor"
    package.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        link = package / part
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(Path("..") / ".." / part, target_is_directory=True)
    path = os.pathsep.join(
        part for part in (str(package.parent), os.environ.get("PYTHONPATH")) if part
    )
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(root)]
    command += ["-p", "no:cacheprovider", "--import-mode=importlib", "-ra"]
    command += ["-o", "markers=gpu: needs a CUDA device", str(HERE), *sys.argv[1:]]
    return subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
