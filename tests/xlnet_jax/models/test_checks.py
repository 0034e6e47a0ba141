"""Arguments without a meaning are refused by name, and those of another type compute the same."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xlnet_jax.random_models import BERT, HEADS, SMALL, random_model, random_params
from xlnet_jax import InputError
from xlnet_jax.models import inputs as of_network
from xlnet_jax.models.heads import XLNetLM, build_model
from xlnet_jax.models.inputs import check_inputs, compact_inputs, dense_inputs, text_inputs

CONFIG = dataclasses.replace(SMALL, num_layers=2)
PARAMS = random_params(CONFIG, None)
BATCH = 2


def put(value):
    """Damage one number."""

    def damage(array, rng):
        array = array.astype(np.float32 if isinstance(value, float) else array.dtype)
        array[tuple(rng.integers(array.shape))] = value
        return array

    return damage


def as_type(dtype):
    return lambda array, rng: array.astype(dtype)


def one_fewer(array, rng):
    return np.delete(array, 0, axis=rng.integers(array.ndim))


def of_one(array, rng):
    """An axis of size 1, which NumPy would broadcast."""
    return array.take([0], axis=rng.choice([axis for axis, size in enumerate(array.shape) if size > 1]))


def without_axis(array, rng):
    return array.take(0, axis=rng.integers(array.ndim))


def with_axis(array, rng):
    return np.expand_dims(array, rng.integers(array.ndim + 1))


def backwards(array, rng):
    return array.swapaxes(0, -1)


SHAPES = (one_fewer, of_one, without_axis, with_axis, backwards)
TYPES = {
    "segment_ids_BL": (np.int64, np.uint8),
    "attention_mask_BL": (bool, np.int8, np.float16),
    "perm_mask_BLL": (bool, np.int8, np.float16),
    "target_mapping_BPL": (bool, np.int64),
    "predicted_BL": (bool, int),
}  # besides the types of `arguments`


def dense_arguments(seed=0, length=4):
    """Arguments of the dense form, with a query stream by `target_mapping_BPL`."""
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(length), (BATCH, 1)), axis=1)
    return {
        "input_ids_BL": rng.integers(0, CONFIG.vocab_size, (BATCH, length)).astype(np.int32),
        "segment_ids_BL": rng.integers(0, 3, (BATCH, length)).astype(np.int32),
        "attention_mask_BL": (rng.random((BATCH, length)) < 0.8).astype(np.float32),
        "perm_mask_BLL": (order[:, None, :] >= order[:, :, None]).astype(np.float32),
        "target_mapping_BPL": np.eye(length, dtype=np.float32)[order[:, :2]],
        "predicted_BL": rng.integers(0, 2, (BATCH, length)).astype(np.float32),
        "mems_ZBMD": rng.normal(size=(CONFIG.num_layers, BATCH, 2, CONFIG.d_model)).astype(np.float32),
    }


@jax.jit
def compute(params, inputs, mems_ZBMD):
    return XLNetLM(CONFIG).apply({"params": params}, inputs, mems_ZBMD)[0]


def ours(mems_ZBMD=None, **dense):
    memory_BM = None if mems_ZBMD is None else np.ones((BATCH, mems_ZBMD.shape[2] if mems_ZBMD.ndim > 2 else 0), bool)
    inputs = dense_inputs(**dense, memory_BM=memory_BM)
    check_inputs(inputs, mems_ZBMD, CONFIG)
    return np.asarray(compute(PARAMS, inputs, mems_ZBMD))


def result_or_error(call):
    """Return (result, None), or (None, the message); other errors pass through."""
    try:
        return call(), None
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in TYPES.items() for kind in kinds])
def test_an_argument_of_another_type_is_computed_alike(name, kind):
    given = dense_arguments()
    if name == "predicted_BL":
        del given["target_mapping_BPL"]  # it has priority
    np.testing.assert_array_equal(ours(**given | {name: given[name].astype(kind)}), ours(**given))


IDS = np.arange(10).reshape(2, 5)
COMPACT = {
    "input_ids_BL": IDS,
    "segment_ids_BL": IDS % 2,
    "perm_rank_BL": IDS % 5,
    "target_positions_BP": np.array([[1, 2, 4]] * 2),
    "is_reversed_B": np.array([True, False]),
    "memory_BM": np.ones((2, 3), bool),
    "attention_mask_BL": np.ones((2, 5), np.int32),
    "document_start_BL": np.array([[-2, -2, 2, 2, 4], [0, 0, 0, 3, 3]]),
}
NUMBERS = [-(2**40), -(2**29), -3, -1, 0, 1, 2, 4, 5, 39, 40, 2**29, 2**31, 0.5, np.nan, np.inf]


def compact(mems_ZBMD=None, **given):
    inputs = compact_inputs(**given)
    check_inputs(inputs, mems_ZBMD, CONFIG)
    return compute(PARAMS, inputs, mems_ZBMD)


MEMS = np.zeros((2, 2, 3, 24), np.float32)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(("call", "good"), [(compact, COMPACT), (ours, dense_arguments())], ids=["compact", "dense"])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_arguments_are_computed_or_refused_by_name(call, good, data):
    name = data.draw(st.sampled_from([*good]))
    absent = data.draw(st.sets(st.sampled_from([*good][1:])))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    number = data.draw(st.sampled_from(NUMBERS))
    kind = np.int64 if isinstance(number, int) else np.float64
    types = map(as_type, (float, bool, complex, str, object))
    damages = [*SHAPES, lambda array, rng: put(number)(array.astype(kind), rng), *types]
    given = {key: array for key, array in good.items() if key not in absent - {name}}
    if call is compact and "memory_BM" in given:
        given["mems_ZBMD"] = MEMS
    given[name] = data.draw(st.sampled_from(damages))(given[name], rng)
    computed, error = result_or_error(lambda: call(**given))
    named = [*given] if name == "input_ids_BL" else [name]  # with fewer positions, others are out of range
    if error:
        assert any(f"`{each}`" in error for each in named)
    else:  # the numbers of the memory, which is large, are not checked
        assert np.isfinite(computed).all() or not np.isfinite(given.get("mems_ZBMD", 0)).all()


LENGTHENED = np.arange(12).reshape(2, 6)
MODEL, MODEL_OF_BERT = random_model(CONFIG), random_model(BERT)


def applied(inputs, *args, model=MODEL, **settings):
    return model.network.apply({"params": model.params}, inputs, *args, **settings)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: MODEL.hidden_states(IDS + 31, IDS * 0 + 1),
            "`input_ids_BL` at [1, 4] must be from 0 to V - 1 (V = 40), not 40",
        ),
        (lambda: MODEL.hidden_states(IDS - 1, IDS * 0 + 1), "`input_ids_BL` at [0, 0] must be from 0 to V - 1, not -1"),
        (lambda: MODEL.hidden_states(IDS.tolist(), IDS), "`input_ids_BL` is a list: give a NumPy or jax array [B, L]"),
        (lambda: MODEL.hidden_states(IDS, IDS), "`attention_mask_BL` at [0, 2] must be 0 or 1, not 2"),
        (
            lambda: MODEL.hidden_states(IDS, LENGTHENED // 20),
            "`attention_mask_BL` has the shape (2, 6) and must be [B, L]: L is 5 in `input_ids_BL`",
        ),
        (
            lambda: MODEL_OF_BERT.hidden_states(IDS, IDS * 0 + 1, IDS - 1),
            "`segment_ids_BL` at [0, 0] must be from 0 to segments - 1 (segments = 3), not -1",
        ),
        (
            lambda: applied(IDS),
            "`inputs` is of type ndarray: make it with text_inputs, dense_inputs or compact_inputs "
            "(xlnet_jax.models.inputs)",
        ),
        (lambda: applied(text_inputs(IDS, mem_len=3)), "`mems_ZBMD` is missing: `memory_BM` has 3 slots"),
        (
            lambda: applied(text_inputs(IDS, mem_len=3), MEMS[:, :1]),
            "`mems_ZBMD` has the shape (2, 1, 3, 24) and must be [Z, B, M, D]: B is 2 in `input_ids_BL`",
        ),
        (
            lambda: applied(text_inputs(IDS, mem_len=3), MEMS.astype(int)),
            "`mems_ZBMD` has the type int64, but must have floating-point numbers",
        ),
        (
            lambda: applied(text_inputs(IDS), at_BP=np.array([[0], [5]])),
            "`at_BP` at [1, 0] must be from 0 to T - 1 (T = 5), not 5",
        ),
        (
            lambda: text_inputs(IDS[:, :0]),
            "`input_ids_BL` has the shape (2, 0) and must be [B, L], with at least one position",
        ),
        (
            lambda: dense_inputs(IDS, target_mapping_BPL=np.zeros((2, 1, 5))),
            "`target_mapping_BPL` at [0, 0] must be a one-hot row; map padding to the last position, with weight 0",
        ),
    ],
)
def test_a_message_says_which_argument_is_wrong_where_and_what_it_must_be(call, message):
    with pytest.raises(InputError) as error:
        call()
    assert str(error.value).splitlines()[0] == message


@pytest.mark.parametrize(
    ("head", "arguments", "message"),
    [
        ("classification", (IDS[:, :4] * 0,), "`attention_mask_BL` has the shape (2, 4)"),
        ("multiple_choice", (IDS * 0 + 1,), "`inputs` have 2 rows: give 4 for each question, its options"),
        (
            "question_answering",
            (np.array([5, 0]), IDS * 0, np.array([0, 0])),
            "`cls_index_B` at [0] must be from 0 to L - 1",
        ),
        (
            "question_answering",
            (np.array([4, 0]), IDS * 0, np.array([-1, 0])),
            "`start_B` at [0] must be from 0 to L - 1",
        ),
    ],
)
def test_arguments_of_heads_are_checked(head, arguments, message):
    params = random_params(CONFIG, HEADS[head])
    with pytest.raises(InputError) as error:
        build_model(CONFIG, HEADS[head]).apply({"params": params}, text_inputs(IDS), *arguments)
    assert message in str(error.value)


def test_shapes_are_checked_while_a_program_is_traced_and_numbers_are_not_in_it():
    inputs = compact_inputs(**COMPACT)
    checked = jax.make_jaxpr(compute)(PARAMS, inputs, MEMS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_network, "check_arrays", lambda *sizes, **arrays: None)
        jax.clear_caches()
        assert str(jax.make_jaxpr(compute)(PARAMS, inputs, MEMS)) == str(checked)
    jax.clear_caches()
    with pytest.raises(InputError, match="`mems_ZBMD` has the shape"):
        compute(PARAMS, inputs, MEMS[:, :1])


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("target_positions_BP", 5),
        ("target_positions_BP", -1),
        ("perm_rank_BL", 2**29),
        ("perm_rank_BL", -(2**29)),
        ("segment_ids_BL", 2**31),
        ("is_reversed_B", 2),
        ("memory_BM", -1),
        ("attention_mask_BL", 2),
        ("document_start_BL", 1),
    ],
)
def test_numbers_that_would_be_computed_without_a_meaning_are_refused(name, number):
    array = COMPACT[name].astype(np.int64)
    array.flat[0] = number
    with pytest.raises(InputError, match=rf"^`{name}` at \[0.* must be .*, not {number}$"):
        compact_inputs(**COMPACT | {name: array})
