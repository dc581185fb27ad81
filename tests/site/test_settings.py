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


@pytest.mark.parametrize("content", [None, b"", b"# nothing\n"])
def test_without_settings_the_defaults_hold(content: bytes | None) -> None:
    if content is not None:
        write(content)
    assert read_settings(state_directory()) == SiteSettings(require_approval=False)


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_settings_are_read_also_after_a_byte_order_mark(start: bytes) -> None:
    lines = ["require_approval = true", "min_group_size = 11"]
    command = ["[agent]", 'notify_command = ["/bin/tell", "it@x"]']
    write(start + "\r\n".join([*lines, *command]).encode())
    found = read_settings(state_directory())
    assert (found.require_approval, found.min_group_size) == (True, 11)
    assert found.agent.notify_command == ("/bin/tell", "it@x")
    assert found.lines() == [*lines, f"agent.{command[1]}"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("require_aproval = true", "require_aproval: .* did you mean require_approval"),
        ("[agent]\nunknown_key = 1", "agent.unknown_key: .* there are notify_command"),
        ('[agent]\nnotify_command = "tell it"', "agent.notify_command: "),
        ('require_approval = "yes"', "require_approval: write true or false, without quotes"),
        ("min_group_size = 2", "min_group_size: at least 3"),
        ('min_group_size = "11"', "min_group_size: write a whole number, without quotes"),
        ("min_group_size = 10.5", "min_group_size: write a whole number, without quotes"),
        ("require_approval = 2026-01-01", "only text, numbers, lists and tables can be given"),
        ("require_approval true", "this is not TOML"),
        (b"require_approval = \xff", "this is not TOML"),
        pytest.param("require_approval = " + "[" * 100_000, "nested too deeply", id="nested"),
    ],
)
def test_a_wrong_setting_names_file_key_and_what_to_write(content: str | bytes, said: str) -> None:
    path = write(content)
    with pytest.raises(UsageError, match=said) as caught:
        read_settings(state_directory())
    assert str(path) in str(caught.value)
    assert "yes" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_not_taken_for_an_absent_one() -> None:
    settings_path(state_directory()).mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        read_settings(state_directory())
