import pytest

from octavo_api.errors import AuthenticationFailed, ConfigurationError
from octavo_router.front import keys as module
from octavo_router.front.keys import ApiKeys


def test_a_tenant_may_have_several_keys(key_file):
    keys = ApiKeys.from_file(key_file)
    assert [keys.authenticate(f"key-of-{name}") for name in ("acme-1", "acme-2", "zeta-1")] == ["acme", "acme", "zeta"]


@pytest.mark.parametrize("key", [None, "", "wrong", "key-of-acme-", "key-of-acme-11", "ключ"])
def test_unknown_keys_are_rejected_and_not_shown(key_file, key):
    with pytest.raises(AuthenticationFailed) as caught:
        ApiKeys.from_file(key_file).authenticate(key)
    assert not key or key not in caught.value.message


def test_keys_are_not_kept(key_file):
    keys = ApiKeys.from_file(key_file)
    assert "key-of-acme" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["got no key"]),
        ("# only\n\n", ["got no key"]),
        ("acme secret-key-1\nbeta\n", ["line 2", "8 to 512"]),
        ("acme secret-key-1 more\n", ["line 1", "3 words"]),
        ("a/b secret-key-1\n", ["line 1", "name"]),
        ("acme short\n", ["line 1", "8 to 512"]),
        ("acme secret-key-1\n\nbeta secret-key-1\n", ["line 3", "earlier line"]),
        (b"acme \xff\n", ["UTF-8"]),
    ],
)
def test_an_invalid_file_is_named_with_its_line_and_without_the_key(tmp_path, content, words):
    path = tmp_path / "keys"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigurationError) as caught:
        ApiKeys.from_file(path)
    assert all(word in caught.value.message for word in (str(path), *words)), caught.value.message
    assert "secret" not in caught.value.message


def test_a_key_alone_is_the_default_tenants(tmp_path):
    path = tmp_path / "keys"
    path.write_text("key-of-nobody\nacme key-of-acme\n")
    keys = ApiKeys.from_file(path)
    assert [keys.authenticate(key) for key in ("key-of-nobody", "key-of-acme")] == ["default", "acme"]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        ApiKeys.from_file(tmp_path / "none")


def test_a_rotated_file_is_reloaded(key_file, monkeypatch):
    monkeypatch.setattr(module, "REREAD_S", 0.0)
    keys = ApiKeys.from_file(key_file)
    replacement = key_file.with_suffix(".new")
    replacement.write_text("acme another-key-1\n")
    replacement.replace(key_file)
    assert keys.authenticate("another-key-1") == "acme"
    with pytest.raises(AuthenticationFailed):
        keys.authenticate("key-of-acme-1")


def test_an_invalid_new_file_changes_nothing(key_file, monkeypatch, caplog):
    monkeypatch.setattr(module, "REREAD_S", 0.0)
    keys = ApiKeys.from_file(key_file)
    key_file.write_text("acme\n")
    assert keys.authenticate("key-of-acme-1") == "acme"
    assert "line 1" in caplog.text
    key_file.unlink()
    assert keys.authenticate("key-of-acme-1") == "acme"


def test_a_file_that_becomes_invalid_is_logged_once_and_keys_stay(key_file, monkeypatch, caplog):
    monkeypatch.setattr(module, "REREAD_S", 0.0)
    keys = ApiKeys.from_file(key_file)
    told = []
    keys.on_reload = told.append
    key_file.write_text("acme\n")
    for _ in range(3):
        assert keys.authenticate("key-of-acme-1") == "acme"
    key_file.write_text("acme new-key-of-acme\n")
    assert keys.authenticate("new-key-of-acme") == "acme"
    assert told == [False, True]
    assert caplog.text.count("previous keys stay valid") == 1
