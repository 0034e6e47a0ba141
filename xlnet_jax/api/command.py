"""Names that modules of this folder import from here."""

from xlnet_jax.printing import printing_until_unread as printing
from xlnet_jax.printing import progress
from xlnet_jax.settings.fields import CheckpointArgument

__all__ = ["CheckpointArgument", "printing", "progress"]
