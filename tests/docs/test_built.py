"""The look at built pages sees what it should: addresses elsewhere, and links that lead nowhere."""

import built
import pytest

PAGE = "<html><head>{head}</head><body id='top'>{body}</body></html>"


@pytest.fixture
def folder(tmp_path):
    def write(name, head="", body=""):
        (tmp_path / name).write_text(PAGE.format(head=head, body=body), encoding="utf-8")
        return tmp_path

    write("other.html", body="<h1 id='here'>x</h1>")
    (tmp_path / "own.css").write_text("body { background: url(own.png) }", encoding="utf-8")
    return write


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("<script src='https://cdn.example/mathjax.js'></script>", ""),
        ("<link rel='stylesheet' href='//fonts.example/x.css'>", ""),
        ("<link rel='preconnect' href='https://fonts.example'>", ""),
        ("<style>@import url(https://fonts.example/x.css);</style>", ""),
        ("<style>p { background: url('https://x.example/a.png') }</style>", ""),
        ("", "<img src='http://x.example/a.png'>"),
        ("", "<img srcset='https://x.example/a.png 2x'>"),
        ("", "<iframe src='https://x.example'></iframe>"),
        ("", "<p style='background: url(https://x.example/a.png)'>x</p>"),
        ("", "<svg><image href='https://x.example/a.png'></image></svg>"),
    ],
)
def test_what_is_loaded_from_elsewhere_is_found(folder, head, body):
    (found,) = built.problems(folder("page.html", head, body))
    assert found.startswith("page.html loads ")


def test_a_style_sheet_of_another_place_is_found(folder):
    root = folder("page.html")
    (root / "own.css").write_text("@import 'https://fonts.example/x.css';", encoding="utf-8")
    assert built.problems(root) == ["own.css loads https://fonts.example/x.css"]


@pytest.mark.parametrize(("address", "wrong"), [("no.html", "does not exist"), ("other.html#no", "has no such place")])
def test_a_link_that_leads_nowhere_is_found(folder, address, wrong):
    (found,) = built.problems(folder("page.html", body=f"<a href='{address}'>x</a>"))
    assert found == f"page.html: {address} {wrong}"


def test_a_sound_page_has_nothing(folder):
    body = "<a href='other.html#here'>x</a><a href='#top'>x</a><a href='https://arxiv.org/abs/1'>a paper</a>"
    body += "<img src='data:image/png;base64,AA=='><svg xmlns='http://www.w3.org/2000/svg'></svg>"
    assert built.problems(folder("page.html", "<link rel='stylesheet' href='own.css'>", body)) == []
