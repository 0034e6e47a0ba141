"""A folder that stands in for Google Cloud Storage, behind the one path layer that every access goes through."""

import os
import uuid
from pathlib import Path

from etils.epath import backend


class Bucket(backend._OsPathBackend):
    """gs://bucket/... is kept in a folder; what is listed is named as it was asked for."""

    def __init__(self, folder):
        self.folder = folder

    def here(self, path):
        return str(path).replace("gs://", f"{self.folder}/")

    def there(self, path):
        return str(path).replace(f"{self.folder}/", "gs://")

    def open(self, path, mode):
        here = Path(self.here(path))
        if mode.startswith("r"):
            return super().open(here, mode)
        here.parent.mkdir(parents=True, exist_ok=True)  # a store of objects has no folders
        return self._appearing_whole(here, mode)

    def _appearing_whole(self, path, mode):
        """A file that nobody sees before it is closed."""
        assert mode.startswith("w"), "a store of objects cannot append"
        partial = self.folder / f"being-written-{uuid.uuid4().hex}"
        file = super().open(partial, mode)
        close = file.close

        def close_and_appear():
            if not file.closed:
                close()
                os.replace(partial, path)

        file.close = close_and_appear
        return file

    def exists(self, path):
        return super().exists(self.here(path))

    def isdir(self, path):
        return super().isdir(self.here(path))

    def listdir(self, path):
        return super().listdir(self.here(path))

    def glob(self, path):
        return [self.there(p) for p in super().glob(self.here(path))]

    def walk(self, top, **options):
        for root, folders, files in super().walk(self.here(top), **options):
            yield self.there(root), folders, files

    def makedirs(self, path, **options):
        super().makedirs(self.here(path), **options)

    def mkdir(self, path, **options):
        super().mkdir(self.here(path), **options)

    def rmtree(self, path):
        super().rmtree(self.here(path))

    def remove(self, path):
        super().remove(self.here(path))

    def rename(self, path, dst):
        raise AssertionError("a store of objects cannot rename a folder at once")

    def replace(self, path, dst):
        super().replace(self.here(path), self.here(dst))

    def copy(self, path, dst, overwrite):
        Path(self.here(dst)).parent.mkdir(parents=True, exist_ok=True)
        super().copy(self.here(path), self.here(dst), overwrite=overwrite)

    def stat(self, path):
        return super().stat(self.here(path))
