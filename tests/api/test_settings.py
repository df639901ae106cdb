import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.alias_generators import to_camel

from octavo_api.errors import ConfigurationError
from octavo_api.settings import Dtype, EngineSettings, RouterSettings, SchedulingPolicy, parse_bytes


def complaint(values, cls=EngineSettings) -> str:
    with pytest.raises(ConfigurationError) as error:
        cls.read(values, where="engine")
    return error.value.message


@pytest.mark.parametrize("cls", [EngineSettings, RouterSettings])
def test_both_spellings_read_the_same(cls) -> None:
    defaults = {name: field.default for name, field in cls.model_fields.items()}
    assert cls.read(defaults, where="x") == cls()
    assert cls.read({to_camel(name): value for name, value in defaults.items()}, where="x") == cls()


@pytest.mark.parametrize("cls", [EngineSettings, RouterSettings])
def test_every_setting_says_what_it_is_and_what_a_change_does(cls) -> None:
    for name, field in cls.model_fields.items():
        assert field.description, name
        assert field.description.endswith("."), name
        assert field.json_schema_extra["x-octavo-change"] in ("live", "rolling", "new cluster", "immutable"), name


def test_words_become_members() -> None:
    settings = EngineSettings.read({"dtype": "float32", "schedulingPolicy": "priority"}, where="engine")
    assert settings.dtype is Dtype.FLOAT32
    assert settings.scheduling_policy is SchedulingPolicy.PRIORITY


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        EngineSettings().block_size = 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4096", 4096),
        ("1k", 1000),
        ("500M", 500_000_000),
        ("4Gi", 2**32),
        ("4GiB", 2**32),
        ("1.5Gi", 3 * 2**29),
        ("0.1k", 100),
        ("2T", 2 * 10**12),
        ("9007199254740993", 9007199254740993),
        (4096, 4096),
        (None, None),
    ],
)
def test_quantities(text, value) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize(
    "text", ["", "lots", "-1", "1e3", "4 Gi", "4gi", "Gi", "1.", ".5k", "1Gi5", "٣", " 4Gi", "9" * 31]
)
def test_what_is_no_quantity_is_refused(text) -> None:
    assert "quantity like 4Gi or 500M" in complaint({"kv_cache_memory_bytes": text})


@given(st.integers(0, 2**70), st.sampled_from(["", "k", "M", "G", "T", "Ki", "Mi", "Gi", "Ti"]))
def test_quantities_are_exact(number, unit) -> None:
    prefix = "kMGT".find(unit[:1].replace("K", "k")) + 1 if unit else 0
    assert parse_bytes(f"{number}{unit}") == number * (1024 if unit.endswith("i") else 1000) ** prefix


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"block_size": 0}, "engine.block_size: got 0, allowed: at least 16"),
        ({"blockSize": 24}, "engine.blockSize: got 24, allowed: a multiple of 16"),
        ({"blockSize": 272}, "engine.blockSize: got 272, allowed: at most 256"),
        ({"blockSize": "16"}, "engine.blockSize: got '16', allowed: a valid integer"),
        ({"blockSize": 16.0}, "engine.blockSize: got 16.0, allowed: a valid integer"),
        ({"blockSize": True}, "engine.blockSize: got True, allowed: a valid integer"),
        ({"enablePrefixCaching": 1}, "engine.enablePrefixCaching: got 1, allowed: a valid boolean"),
        ({"dtype": "fp8"}, "engine.dtype: got 'fp8', allowed: 'auto', 'bfloat16' or 'float32'"),
        ({"kvCacheMemoryBytes": 5}, "engine.kvCacheMemoryBytes: got 5, allowed: at least 65536"),
        ({"kvCacheMemoryBytes": "1k"}, "engine.kvCacheMemoryBytes: got '1k', allowed: at least 65536"),
        ({"blocksize": 16}, "engine.blocksize: unknown field; did you mean block_size?"),
        ({"maxNumSeq": 16}, "engine.maxNumSeq: unknown field; did you mean maxNumSeqs?"),
        ({"zzz": 16}, "engine.zzz: unknown field, allowed: block_size, dtype,"),
    ],
)
def test_errors_name_field_value_and_what_is_allowed(values, says) -> None:
    assert complaint(values).startswith(says)


def test_all_errors_come_at_once() -> None:
    assert complaint({"block_size": 0, "max_num_seqs": 0, "zzz": 1}).count("\n") == 2


def test_the_default_of_sequences_is_no_more_than_the_tokens_of_a_step() -> None:
    assert EngineSettings().num_seqs == 128
    assert EngineSettings(max_num_batched_tokens=64).num_seqs == 64
    assert EngineSettings(max_num_seqs=64, max_num_batched_tokens=64).num_seqs == 64


@pytest.mark.parametrize("values", [{"max_num_seqs": 65, "max_num_batched_tokens": 64}, {"max_num_seqs": 4096}])
def test_more_sequences_than_tokens_of_a_step_are_refused(values) -> None:
    assert "maxNumSeqs must not exceed maxNumBatchedTokens" in complaint(values)
