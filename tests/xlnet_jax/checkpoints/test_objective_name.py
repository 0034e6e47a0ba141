"""A checkpoint names the objective that it was pretrained by; for one without the name it is guessed."""

import dataclasses
import json

import pytest

import xlnet_jax
from tests.xlnet_jax.random_models import BERT, CAUSAL, SMALL, random_model
from xlnet_jax.errors import InputError
from xlnet_jax.storage.checksums import write_checksums


def with_name(folder, name):
    """Change the objective in the metadata of a checkpoint; None = remove it."""
    metadata = folder / "config" / "metadata"
    settings = json.loads(metadata.read_text()) | {"objective": name}
    metadata.write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
    write_checksums(folder)


@pytest.mark.parametrize(("model", "shown"), [(SMALL, "plm"), (CAUSAL, "clm"), (BERT, "mlm")])
def test_the_name_is_kept_and_guessed_only_where_it_is_missing(model, shown, tmp_path):
    pretrained = dataclasses.replace(random_model(model), objective="prefix")
    folder = tmp_path / "saved"
    xlnet_jax.save(pretrained, folder)
    assert xlnet_jax.load(folder).objective == "prefix"
    with_name(folder, None)
    assert xlnet_jax.load(folder).objective == shown


def test_a_name_that_is_no_objectives_is_refused(tmp_path):
    folder = tmp_path / "saved"
    xlnet_jax.save(random_model(SMALL), folder)
    with_name(folder, "pln")
    with pytest.raises(InputError, match=r"metadata: objective pln: there is plm, .*: did you mean plm\?"):
        xlnet_jax.load(folder)
