"""Check what `make package` built: the sdist contains every file of the repository, the wheel only the two packages,
and the long description has no relative links."""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

(sdist,), (wheel,) = (list(Path("dist").glob(kind)) for kind in ("*.tar.gz", "*.whl"))

with tarfile.open(sdist) as opened:
    packed = {name.partition("/")[2] for name in opened.getnames()}
tracked = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.splitlines()
if missing := sorted(set(tracked) - packed):
    sys.exit(f"{sdist} lacks {', '.join(missing)}: add them to MANIFEST.in, or to package_data of setup.cfg")

with zipfile.ZipFile(wheel) as opened:
    names = opened.namelist()
    (page,) = (opened.read(name).decode() for name in names if name.endswith("METADATA"))
wanted = {name for name in tracked if name.startswith(("xlnet_jax/", "data_pipelines/"))}
installed = {name for name in names if ".dist-info/" not in name}
if wanted != installed:
    sys.exit(f"{wheel} lacks {sorted(wanted - installed)} and should not contain {sorted(installed - wanted)}")
if relative := re.findall(r"""\]\((?!https?://|#)[^)]*\)|(?:src|href)=["'](?!https?://|#)[^"']*""", page):
    sys.exit(f"the long description has relative links, which break on a package index: {', '.join(relative)}")
print(f"{sdist}: {len(tracked)} files of the repository; {wheel}: {len(installed)} files of the packages")
