"""What a log may do to a terminal, and that a file gets it as it is."""

import pytest

from trainflow.cli.log_output import LogOutput

RED = "\x1b[1;31mred\x1b[0m"


def show(capsys: pytest.CaptureFixture[str], *pieces: bytes, is_terminal: bool = True) -> str:
    output = LogOutput(is_terminal=is_terminal)
    for piece in pieces:
        output.write(piece)
    output.end()
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"step 1\t{RED}\r\n", f"step 1\t{RED}\r\n"),
        ("\x1b]0;my window\x07", "\\x1b]0;my window\\x07"),
        ("\x1b[2J\x1b[6n", "\\x1b[2J\\x1b[6n"),
        ("a\x08\x00\x7f\x9b6n", "a\\x08\\x00\\x7f\\xc2\\x9b6n"),
        ("Größe 世界 é", "Größe 世界 é"),
        ("ends with \x1b[3", "ends with \\x1b[3"),
    ],
)
def test_a_terminal_is_shown_text_and_colours_however_they_come(
    said: str, shown: str, capsys: pytest.CaptureFixture[str]
):
    data = said.encode()
    assert show(capsys, data) == shown
    assert show(capsys, *(data[at : at + 1] for at in range(len(data)))) == shown
    assert show(capsys, data, is_terminal=False) == said
