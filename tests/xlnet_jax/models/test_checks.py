"""Arguments that the original refuses, or would compute differently, are refused by name."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xlnet_jax import original
from tests.xlnet_jax.random_models import BERT, HEADS, SMALL, random_model, random_params
from tests.xlnet_jax.reference_cases import Case, padded_at_the_end
from xlnet_jax import InputError
from xlnet_jax.models import inputs as of_network
from xlnet_jax.models.heads import build_model
from xlnet_jax.models.inputs import check_inputs, compact_inputs, dense_inputs, text_inputs, text_windows
from xlnet_jax.models.xlnet import XLNetLM

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


def off_the_diagonal(value):
    def damage(mask_BLL, rng):
        mask_BLL = mask_BLL.astype(np.float32)
        row, key = rng.choice(mask_BLL.shape[1], 2, replace=False)
        mask_BLL[rng.integers(BATCH), row, key] = value
        return mask_BLL

    return damage


def fill_row(value):
    def damage(mapping_BPL, rng):
        mapping_BPL = mapping_BPL.copy()
        mapping_BPL[rng.integers(BATCH), rng.integers(mapping_BPL.shape[1])] = value
        return mapping_BPL

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
FLAGS = (put(-1.0), put(0.5), put(2.0), put(np.nan))
DAMAGES = {
    "input_ids_BL": (put(CONFIG.vocab_size), put(-1), put(2**31 - 1), *map(as_type, (float, bool, complex, object))),
    "segment_ids_BL": (put(-1), put(7), *map(as_type, (float, bool, np.int64, np.uint8))),
    "attention_mask_BL": (*FLAGS, *map(as_type, (bool, np.int8, np.float16, complex, str))),
    "perm_mask_BLL": (*map(off_the_diagonal, (-1, 0.5, 2, np.nan)), *map(as_type, (bool, np.int8, np.float64, str))),
    "target_mapping_BPL": (*map(fill_row, (0, 1, 0.5, np.nan)), put(0.5), put(-1.0), *map(as_type, (bool, complex))),
    "predicted_BL": (*FLAGS, *map(as_type, (bool, int))),
    "mems_ZBMD": (put(np.nan), *map(as_type, (np.float64, np.float16, int, complex))),
}  # fmt: skip


def arguments(rng, length, targets, memory, absent):
    """Good arguments, without those that are `absent`."""
    order = rng.permuted(np.tile(np.arange(length), (BATCH, 1)), axis=1)
    all_of_them = {
        "input_ids_BL": rng.integers(0, CONFIG.vocab_size, (BATCH, length)).astype(np.int32),
        "segment_ids_BL": rng.integers(0, 3, (BATCH, length)).astype(np.int32),
        "attention_mask_BL": (rng.random((BATCH, length)) < 0.8).astype(np.float32),
        "perm_mask_BLL": (order[:, None, :] >= order[:, :, None]).astype(np.float32),
        "target_mapping_BPL": np.eye(length, dtype=np.float32)[order[:, :targets]],
        "predicted_BL": rng.integers(0, 2, (BATCH, length)).astype(np.float32),
        "mems_ZBMD": rng.normal(size=(CONFIG.num_layers, BATCH, memory, CONFIG.d_model)).astype(np.float32),
    }
    return {name: array for name, array in all_of_them.items() if name not in absent}


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


def is_computed_alike(given):
    """True if the original, and the network without any check, compute the same for these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_network, "check_arrays", lambda *sizes, **arrays: None)
        try:
            return np.allclose(ours(**given), original.logits(CONFIG, PARAMS, **given), atol=1e-4, equal_nan=True)
        except Exception:  # one of them refuses
            return False


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_what_is_refused_the_original_refuses_or_computes_differently(data):
    name = data.draw(st.sampled_from([None, *DAMAGES]))
    absent = data.draw(st.sets(st.sampled_from([*DAMAGES][1:]).filter(lambda other: other != name)))
    if name == "predicted_BL":
        absent |= {"target_mapping_BPL"}  # it has priority
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    length, targets, memory = (data.draw(st.integers(*ends)) for ends in ((3, 4), (1, 2), (1, 2)))
    given = arguments(rng, length, targets, memory, absent)
    if name:
        given[name] = data.draw(st.sampled_from([*DAMAGES[name], *SHAPES]))(given[name], rng)
    computed, error = result_or_error(lambda: ours(**given))
    if error is None:
        np.testing.assert_allclose(computed, original.logits(CONFIG, PARAMS, **given), rtol=0, atol=2e-3)
        return
    assert f"`{name}`" in error
    # What a number changes may be hidden by the others: change those.
    masks = [{"perm_mask_BLL": np.full((BATCH, length, length), value)} for value in (0, 1)]
    streams = {"target_mapping_BPL": None, "predicted_BL": None}, {"attention_mask_BL": None}
    changes = [change for change in ({}, *masks, *streams) if name not in change]
    assert not all(is_computed_alike(given | one | other) for one, other in itertools.product(changes, repeat=2)), error


@pytest.mark.parametrize(
    "name",
    ["a3_twostream_tm_mems_uni_data", "c1_finetune_leftpad", "c3_finetune_noseg_nomask", "c4_finetune_mems_leftpad"],
)
def test_the_network_in_float64_is_the_original(reference, name):
    case = Case(reference / "model", name)
    padding, mapping = case.first("inputs/input_mask"), case.first("inputs/target_mapping")
    computed = original.logits(
        case.config,
        case.params,
        case.first("inputs/inp_k"),
        case.first("inputs/seg_id"),
        None if padding is None else 1 - padding,
        case.first("inputs/perm_mask"),
        mapping,
        case.first("inputs/inp_q"),
        case.mems("inputs/mems"),
    )
    np.testing.assert_allclose(computed, case.hidden("outputs/logits"), rtol=0, atol=2e-5)


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


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_compact_arguments_are_computed_or_refused_by_name(data):
    name = data.draw(st.sampled_from([*COMPACT]))
    absent = data.draw(st.sets(st.sampled_from([*COMPACT][1:])))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**31)))
    number = data.draw(st.sampled_from(NUMBERS))
    kind = np.int64 if isinstance(number, int) else np.float64
    damages = [
        *SHAPES,
        lambda array, rng: put(number)(array.astype(kind), rng),
        *map(as_type, (float, bool, complex, str)),
    ]
    given = {key: array for key, array in COMPACT.items() if key not in absent - {name}}
    given[name] = data.draw(st.sampled_from(damages))(given[name], rng)
    mems_ZBMD = np.zeros((CONFIG.num_layers, BATCH, 3, CONFIG.d_model), np.float32) if "memory_BM" in given else None

    def read():
        inputs = compact_inputs(**given)
        check_inputs(inputs, mems_ZBMD, CONFIG)
        return compute(PARAMS, inputs, mems_ZBMD)

    computed, error = result_or_error(read)
    named = [*COMPACT] if name == "input_ids_BL" else [name]  # with fewer positions, others are out of range
    assert any(f"`{each}`" in error for each in named) if error else np.isfinite(computed).all()


LENGTHENED = np.arange(12).reshape(2, 6)
MEMS = np.zeros((2, 2, 3, 24), np.float32)
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
            lambda: MODEL_OF_BERT.hidden_states(IDS, IDS * 0 + 1, IDS // 3),
            "`segment_ids_BL` at [1, 4] must be from 0 to segments - 1 (segments = 3), not 3",
        ),
        (lambda: applied(text_inputs(IDS + 31)), "`input_ids_BL` at [1, 4] must be from 0 to V - 1 (V = 40), not 40"),
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
            lambda: applied(text_inputs(IDS, mem_len=3), MEMS[:1]),
            "`mems_ZBMD` has the shape (1, 2, 3, 24) and must be [Z, B, M, D]: Z is 2 in the network",
        ),
        (
            lambda: applied(text_inputs(IDS, mem_len=3), MEMS[:, :, :1]),
            "`mems_ZBMD` has the shape (2, 2, 1, 24) and must be [Z, B, M, D]: M is 3 in `memory_BM`",
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
            lambda: applied(text_inputs(IDS), at_BP=np.array([[0]])),
            "`at_BP` has the shape (1, 1) and must be [B, P]: B is 2 in the network",
        ),
        (
            lambda: text_inputs(IDS[:, :0]),
            "`input_ids_BL` has the shape (2, 0) and must be [B, L], with at least one position",
        ),
        (
            lambda: dense_inputs(IDS, target_mapping_BPL=np.zeros((2, 1, 5))),
            "`target_mapping_BPL` at [0, 0] must be a one-hot row; map padding to the last position, with weight 0",
        ),
        (
            lambda: next(text_windows(IDS, IDS * 0 + 1, LENGTHENED, 5, 0)),
            "`segment_ids_BL` has the shape (2, 6) and must be [B, L]: L is 5 in `input_ids_BL`",
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


def test_padding_of_a_dense_batch_is_at_the_last_position():
    mapping_BPL = np.eye(5, dtype=np.float32)[None, [1, 0]] * np.array([1, 0])[None, :, None]
    assert padded_at_the_end(mapping_BPL).argmax(-1).tolist() == [[1, 4]]


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
