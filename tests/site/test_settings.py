"""A site's settings file: what it may hold, and what its mistakes are answered with."""

from pathlib import Path

import pytest

from fedclust.site.settings import SiteSettings, read_settings, settings_path
from fedclust.site.state import state_directory
from fedclust.wire.errors import UsageError


def write(content: str | bytes) -> Path:
    path = settings_path(state_directory())
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_without_a_file_the_defaults_hold() -> None:
    assert not settings_path(state_directory()).exists()
    assert read_settings(state_directory()) == SiteSettings(require_approval=False)


@pytest.mark.parametrize("content", [b"", b"# nothing\n"])
def test_an_empty_file_is_the_defaults(content: bytes) -> None:
    write(content)
    assert read_settings(state_directory()) == SiteSettings()


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_a_setting_is_read_also_after_a_byte_order_mark(start: bytes) -> None:
    write(start + b"require_approval = true\r\n")
    assert read_settings(state_directory()).require_approval
    assert read_settings(state_directory()).lines() == [
        "require_approval = true",
        "agent.notify_command = []",
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("require_aproval = true", "require_aproval: .* did you mean require_approval"),
        ("[agent]\nunknown_key = 1", "agent.unknown_key: .* there are notify_command"),
        ('require_approval = "yes"', "require_approval: write true or false, without quotes"),
        ("require_approval = 1", "require_approval: write true or false, without quotes"),
        ("min_group_size = 2", "min_group_size: at least 3"),
        ('min_group_size = "11"', "min_group_size: write a whole number, without quotes"),
        ("min_group_size = 10.5", "min_group_size: write a whole number, without quotes"),
        ("require_approval = 2026-01-01", "only text, numbers, lists and tables can be given"),
    ],
)
def test_a_wrong_setting_names_file_key_and_what_to_write(content: str, said: str) -> None:
    path = write(content)
    with pytest.raises(UsageError, match=said) as caught:
        read_settings(state_directory())
    assert str(path) in str(caught.value)
    assert "yes" not in str(caught.value)


def test_a_file_nested_too_deeply_is_refused() -> None:
    path = write("require_approval = " + "[" * 100_000)
    with pytest.raises(UsageError, match="it is nested too deeply") as caught:
        read_settings(state_directory())
    assert str(path) in str(caught.value)


def test_a_least_group_size_is_read() -> None:
    write("min_group_size = 11\n")
    assert read_settings(state_directory()).min_group_size == 11
    assert "min_group_size = 11" in read_settings(state_directory()).lines()


@pytest.mark.parametrize("content", ["require_approval true", b"require_approval = \xff", "=["])
def test_what_is_not_toml_is_refused(content: str | bytes) -> None:
    path = write(content)
    with pytest.raises(UsageError, match="this is not TOML") as caught:
        read_settings(state_directory())
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_not_taken_for_an_absent_one() -> None:
    settings_path(state_directory()).mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        read_settings(state_directory())
