"""Inputs are found and opened, or the message says what is there instead."""

from __future__ import annotations

import bz2
import functools
import gzip
import http.server
import lzma
import os
import shlex
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import uproot
from xectool.checks.facts import FileFacts
from xectool.config.inputs import expand_inputs, input_name, input_paths, split_tree
from xectool.data.blocks import SourceFile
from xectool.diagnosis.evidence.files import train_files
from xectool.errors import DataFileError, MisnamedInput
from xectool.rootio.files import open_tree
from xectool.rootio.reader import EventFile
from xectool.rootio.source import RemoteSource


@pytest.fixture
def directory(tmp_path, rows, write_rows):
    for name in ("b.root", "a.root", "c10.root"):
        write_rows(tmp_path / name, {"run": rows["run"]})
    (tmp_path / "notes.txt").write_text("text")
    (tmp_path / "deep").mkdir()
    write_rows(tmp_path / "deep" / "d.root", {"run": rows["run"]})
    return tmp_path


def test_a_directory_gives_its_files_sorted(directory):
    names = ["a.root", "b.root", "c10.root"]
    assert expand_inputs(str(directory)) == [str(directory / name) for name in names]
    assert expand_inputs(directory) == expand_inputs([str(directory)])


def test_globs_may_look_into_subdirectories(directory):
    assert expand_inputs(f"{directory}/[ab].root") == [str(directory / "a.root"), str(directory / "b.root")]
    assert len(expand_inputs(f"{directory}/**/*.root")) == 4


def test_a_tree_suffix_is_kept(directory):
    assert expand_inputs(f"{directory}/*.root:events")[0] == f"{directory}/a.root:events"
    assert expand_inputs(f"{directory}/a.root:events") == [f"{directory}/a.root:events"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"@{d}/files.txt", "names itself"),
        (b"@{d}/inner.txt", "names itself"),
        (b"a\xe9.root", "no UTF-8 text: byte 1 is 0xe9"),
    ],
)
def test_a_list_that_is_none_is_refused(directory, content, said):
    (directory / "inner.txt").write_text(f"@{directory}/files.txt")
    (directory / "files.txt").write_bytes(content.replace(b"{d}", str(directory).encode()))
    for read in (expand_inputs, lambda spec: list(input_paths(spec))):
        with pytest.raises(DataFileError, match=said):
            read(f"@{directory}/files.txt")


def test_a_list_file_is_relative_to_itself_and_has_comments(directory):
    listed = "a.root\n\nhttps://server/x.root  # remote\n*.root\n# all\n"
    (directory / "files.txt").write_text(listed, encoding="utf-8-sig")  # with the mark that some editors put first
    found = expand_inputs(f"@{directory}/files.txt")
    assert found == [
        str(directory / "a.root"),
        "https://server/x.root",
        str(directory / "b.root"),
        str(directory / "c10.root"),
    ]


def test_urls_are_taken_as_they_are():
    urls = ["root://eos.server//store/a.root", "https://server/b.root:events"]
    assert expand_inputs(urls) == urls


def test_a_home_directory_is_expanded(directory, monkeypatch):
    monkeypatch.setenv("HOME", str(directory))
    assert expand_inputs("~/a.root") == [str(directory / "a.root")]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{d}/aa.root", r"aa\.root' does not exist, did you mean 'a\.root'\?[\s\S]*fix: /.*/a\.root"),
        ("{d}/nowhere/a.root", "there is no directory"),
        ("{d}/x*.root", "no file matches"),
        ("{d}/empty", r"holds no \*\.root file \(it holds nothing\)"),
        ("@{d}/list.txt", "list file .* does not exist"),
        ("@{d}/blank.txt", "names no file"),
        ("{d}/" + 300 * "y" + "/a.root", "there is no directory"),
        ("@" + 300 * "y", "list file .* does not exist"),
        ("~nobody-of-that-name/a.root", "there is no directory"),
        ("{d}/link.root", "does not exist: it links to '/nowhere'"),
        ("", "no input file is given"),
    ],
)
def test_what_is_not_there_is_named_with_what_is_near(directory, spec, message):
    (directory / "empty").mkdir()
    (directory / "link.root").symlink_to("/nowhere")
    (directory / "blank.txt").write_text("# nothing\n")
    with pytest.raises(DataFileError, match=message) as caught:
        expand_inputs(spec.format(d=directory))
    assert caught.value.exit_code == 2
    assert caught.value.fix


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"<!DOCTYPE html><html>login</html>", "it is a web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS pointer"),
        (b"\x89HDF\r\n\x1a\n", "it is an HDF5 file"),
        (gzip.compress(b"root", mtime=0), "it is packed with gzip: gunzip unpacks it"),
        (lzma.compress(b"root"), "it is packed with xz"),
        (b"PK\x03\x04" + bytes(30), "it is a zip archive"),
        (b"PAR1" + bytes(30), "it is a Parquet file"),
        (b"\0" * 500, "starts with zero bytes"),
        (b"hello there, this is text\n", "it is text, starting with 'hello there"),
        (b"\x01\x02\x03\xff" * 20, "its first four bytes are"),
        (b"root", "is truncated"),
    ],
)
def test_a_file_that_is_not_root_is_told_what_it_is(tmp_path, content, message):
    path = tmp_path / "a.root"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=message) as caught:
        open_tree(str(path))
    assert str(path) in caught.value.where
    told = "git lfs pull" if "LFS" in message else "< " if "packed" in message else "copy the file again"
    assert told in caught.value.fix


@pytest.mark.parametrize(
    ("program", "pack"), [("gunzip", gzip.compress), ("unxz", lzma.compress), ("bunzip2", bz2.compress)]
)
def test_the_line_for_a_packed_file_unpacks_it_whatever_its_name(tmp_path, rows, write_rows, program, pack):
    """``gunzip a.root`` fails: it takes no name that ends so."""
    whole = write_rows(tmp_path / "a.root", {name: rows[name] for name in ("npho", "run")}).read_bytes()
    path = tmp_path / "it's packed.root"
    path.write_bytes(pack(whole))
    with pytest.raises(DataFileError, match=program) as caught:
        open_tree(str(path))
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    subprocess.run(caught.value.fix, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "NEW.root").read_bytes() == whole


def test_a_list_of_files_without_its_sign_is_told_with_it(tmp_path, rows, write_rows):
    write_rows(tmp_path / "a.root", {name: rows[name] for name in ("npho", "run")})
    path = tmp_path / "my list.txt"
    path.write_text(f"# {60 * 'long '}\n{tmp_path}/a.root:tree\n")
    with pytest.raises(DataFileError, match="it is text") as caught:
        open_tree(str(path))
    (given,) = shlex.split(caught.value.fix, comments=True)
    assert expand_inputs(given) == [f"{tmp_path}/a.root:tree"]


@pytest.mark.parametrize(
    "listed",
    [
        "root://h//d/a.root\n", "rooted/a.root\nb.root\n", "a.root  # good\n# bad: b.root\n", "a*.root\n", "runs\n",
        "ru*\n", "@inner.txt\n", "# données\na.root\n", "\ufeffa.root\r\nb.root:sub/events\r\n",
        "a.root\n# " + 3000 * "é", 600 * "a.root\n",
    ],
)  # fmt: skip
def test_what_a_list_may_hold_is_known_without_its_sign(tmp_path, listed):
    """Of the first 4096 bytes the last may be half a character."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "files.txt").write_text(listed, encoding="utf-8", newline="")
    with pytest.raises(MisnamedInput, match="it is text") as caught:
        open_tree(str(tmp_path / "files.txt"))
    assert shlex.split(caught.value.fix, comments=True) == [f"@{tmp_path}/files.txt"]


@pytest.mark.parametrize(
    "text", ["data:\n  train_path: a.root\n", "# nothing\n", "see https://h/a.root\nand there\n", "a.root\n\0\n"]
)
def test_a_text_that_is_no_list_does_not_lead_to_one(tmp_path, text):
    (tmp_path / "files.txt").write_text(text)
    with pytest.raises(DataFileError, match="is not a ROOT file") as caught:
        open_tree(str(tmp_path / "files.txt"))
    assert caught.value.fix.startswith("copy the file again")


def test_what_a_list_names_and_is_not_there_is_told_with_the_list(tmp_path):
    (tmp_path / "inner.txt").write_text("gone.root\n")
    (tmp_path / "outer.txt").write_text(f"@{tmp_path}/inner.txt\n")
    said = r"gone.root' does not exist \(named by the list '.*inner.txt'\) \(named by the list '.*outer.txt'\)"
    for read in (expand_inputs, lambda spec: list(input_paths(spec))):
        with pytest.raises(DataFileError, match=said):
            read(f"@{tmp_path}/outer.txt")


@pytest.mark.parametrize("format", ["ttree", "rntuple"])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_file_names_both_sizes(tmp_path, rows, write_rows, format, share):
    path = write_rows(tmp_path / "a.root", {name: rows[name] for name in ("npho", "run")}, format=format)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(DataFileError, match=f"truncated: its header says {len(whole)} bytes, the file has"):
        open_tree(str(path))


def test_a_header_of_zeros_is_damage_and_not_a_file_without_trees(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", {"run": rows["run"]})
    whole = bytearray(path.read_bytes())
    whole[4:100] = bytes(96)
    path.write_bytes(whole)
    with pytest.raises(DataFileError, match="is damaged: its header names no end") as caught:
        open_tree(str(path))
    assert caught.value.code == "XT-DATA-DAMAGED"


def test_a_damaged_directory_is_an_error_of_the_file(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", {"run": rows["run"]})
    whole = bytearray(path.read_bytes())
    messages = []
    for start in range(64, len(whole), 97):
        broken = bytearray(whole)
        broken[start : start + 24] = b"\xff" * 24
        path.write_bytes(broken)
        messages += _failure(path)
    assert len(messages) > 5
    assert all(str(path) in message for message in messages)


def _failure(path):
    try:
        with EventFile(path) as file:
            file.read_column("run")
    except DataFileError as error:
        return [error.problem]
    return []


def test_a_missing_tree_names_the_trees_that_are_there(tmp_path, rows, write_rows):
    path = write_rows(tmp_path / "a.root", {"run": rows["run"]}, tree="events")
    with pytest.raises(DataFileError, match=r"there: events[\s\S]*fix: --set data\.tree_name=events .*a\.root:events$"):
        open_tree(str(path))
    with pytest.raises(DataFileError, match=r"has no tree 'event'[\s\S]*did you mean 'events'"):
        open_tree(f"{path}:event")
    with pytest.raises(DataFileError, match=r"fix: \S*a\.root:events$"):  # data.tree_name says nothing to such a path
        EventFile(f"{path}:event")


@pytest.mark.parametrize("make", ["assign", "mktree"])
def test_of_several_trees_the_one_with_the_events_is_proposed(tmp_path, make):
    with uproot.recreate(tmp_path / "a.root") as file:
        for name, width in (("calibration", 1), ("sev", 4760), ("weather", 2)):
            values = {"values": np.random.default_rng(1).random((20, width), np.float32)}
            if make == "mktree":
                file.mktree(name, {"values": ("f4", (width,))}).extend(values)
            else:
                file[name] = values
    with pytest.raises(DataFileError, match=r"there: calibration, sev, weather[\s\S]*fix: --set data\.tree_name=sev "):
        open_tree(str(tmp_path / "a.root"))


def test_a_chain_names_its_files(tmp_path):
    path, text = tmp_path / "c.root", b"Collectable string class"
    with uproot.recreate(path, compression=None) as file:
        file["tree"] = "/data/my run.root"
    stored = path.read_bytes()
    held = b"\nTObjString\x04tree" + bytes([len(text)]) + text
    assert stored.count(held) == 2, "the key, and the list of keys"
    path.write_bytes(stored.replace(held, b"\x06TChain\x04tree" + bytes([len(text) + 4]) + text + b"    "))
    with pytest.raises(
        DataFileError, match=r"TChain\): it names files \(1\) and holds no event[\s\S]*instead: '/data/my run.root'$"
    ):
        open_tree(str(path))


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (
            b"ROOT::Experimental::RNTuple",
            r"is a ROOT::Experimental::RNTuple: of a ROOT before 6\.34[\s\S]*write it again",
        ),
        (b"ROOT::RNTuple", r"is damaged or of unknown kind[\s\S]*copy the file again"),  # the control
    ],
)
def test_a_tree_in_a_format_before_its_release_is_not_called_damaged(tmp_path, kind, told):
    path, text = tmp_path / "n.root", b"Collectable string class"
    with uproot.recreate(path, compression=None) as file:
        file["tree"] = "not the bytes of an RNTuple"
    held = b"\nTObjString\x04tree" + bytes([len(text)]) + text
    rest = text[len(kind) - len(b"TObjString") :]
    key = bytes([len(kind)]) + kind + b"\x04tree" + bytes([len(rest)]) + rest
    path.write_bytes(path.read_bytes().replace(held, key))
    with pytest.raises(DataFileError, match=told):
        open_tree(str(path))


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (b"CS", r"compressed as ROOT did before its version 3[\s\S]*hadd -f101 NEW\.root \S*/c\.root$"),
        (b"QQ", r"is damaged or of unknown kind[\s\S]*copy the file again"),  # the control
    ],
)
def test_a_compression_that_only_root_reads_is_not_called_damaged(tmp_path, method, told):
    path, text = tmp_path / "c.root", b"Collectable string class"
    with uproot.recreate(path, compression=uproot.ZLIB(1)) as file:
        file["tree"] = "compressible " * 500
    held = b"\nTObjString\x04tree" + bytes([len(text)]) + text
    stored = path.read_bytes().replace(held, b"\x05TTree\x04tree" + bytes([len(text) + 5]) + text + b"     ")
    path.write_bytes(stored.replace(b"ZL\x08", method + b"\x08"))
    with pytest.raises(DataFileError, match=told):
        open_tree(str(path))


@pytest.mark.parametrize(("name", "tree"), [("a.root", "sub/events"), ("a.dat", "events"), ("a b.root", "events")])
def test_what_is_proposed_for_another_tree_can_be_pasted(tmp_path, rows, name, tree):
    with uproot.recreate(tmp_path / name) as file:
        file[tree] = {"run": rows["run"]}
    with pytest.raises(DataFileError) as caught:
        open_tree(str(tmp_path / name))
    option, setting = shlex.split(caught.value.fix, comments=True)
    assert option == "--set"
    wanted = setting.removeprefix("data.tree_name=")
    assert open_tree(str(tmp_path / name), tree_name=wanted).num_entries == len(rows["run"])
    if name.endswith(".root"):
        with pytest.raises(DataFileError) as caught:
            open_tree(f"{tmp_path / name}:another", tree_name=wanted)  # the path goes before the setting
        (spec,) = shlex.split(caught.value.fix)
        assert open_tree(spec).num_entries == len(rows["run"])
    assert split_tree("root://host.root:1094//store/a.root") == ("root://host.root:1094//store/a.root", "tree")


def test_a_pipe_is_refused_before_it_is_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.root"
    os.mkfifo(pipe)
    with pytest.raises(DataFileError, match="no regular file"):
        open_tree(str(pipe))


def test_a_directory_is_not_a_file(tmp_path):
    with pytest.raises(DataFileError, match="is a directory"):
        open_tree(str(tmp_path))


class _RangeHandler(http.server.SimpleHTTPRequestHandler):
    """Serves byte ranges, as web servers for data do."""

    def do_GET(self):
        path = Path(self.translate_path(self.path))
        if not path.exists():
            self.send_error(404)
            return
        content = path.read_bytes()
        start, stop = 0, len(content)
        if header := self.headers.get("Range"):
            first, last = header.removeprefix("bytes=").split("-")
            start, stop = int(first), min(int(last) + 1, stop) if last else stop
        self.send_response(206 if header else 200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(content[start:stop])

    def log_message(self, *_):
        pass


@contextmanager
def _serving(handler, directory):
    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(directory))
    ) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


@pytest.fixture
def server(tmp_path):
    with _serving(_RangeHandler, tmp_path) as url:
        yield url


@pytest.mark.parametrize("format", ["ttree", "rntuple"])
def test_a_file_on_a_web_server_is_read(tmp_path, rows, write_rows, server, format):
    write_rows(tmp_path / "a.root", rows, format=format)
    with EventFile(f"{server}/a.root") as file:
        assert (file.read_column("npho") == rows["npho"]).all()


class _CountingHandler(_RangeHandler):
    served = 0

    def do_GET(self):
        type(self).served += 1
        super().do_GET()


@pytest.mark.parametrize("bulk_bytes", [1 << 22, pytest.param(1, id="control: each by itself")])
def test_small_baskets_on_a_web_server_come_in_few_requests(tmp_path, monkeypatch, bulk_bytes):
    values = np.random.default_rng(1).poisson(3.0, (100, 4760)).astype(np.float32)
    with uproot.recreate(tmp_path / "a.root", compression=uproot.ZLIB(1)) as file:
        tree = file.mktree("tree", {"npho": np.dtype((np.float32, (4760,))), "run": "int32"})
        for number, row in enumerate(values):  # as ROOT begins a file: one event a basket
            tree.extend({"npho": row[None], "run": np.array([number], np.int32)})
    monkeypatch.setattr(RemoteSource, "bulk_bytes", bulk_bytes)
    counting = type("Counting", (_CountingHandler,), {})
    with _serving(counting, tmp_path) as url, EventFile(f"{url}/a.root") as file:
        before = counting.served
        assert (file.read_column("npho") == values).all()
    assert (counting.served - before >= 100) == (bulk_bytes == 1)
    assert bulk_bytes == 1 or counting.served - before <= 8


def test_a_url_that_is_not_there_is_named(tmp_path, server):
    with pytest.raises(DataFileError, match="check the url"):
        open_tree(f"{server}/none.root")


class _BrokenHandler(_RangeHandler):
    """Breaks off, or answers that it is broken, once it has served as many requests as its class says."""

    served, sound, answer = 0, 0, "refuses"

    def do_GET(self):
        type(self).served += 1
        if self.served <= self.sound:
            super().do_GET()
        elif self.answer == "refuses":
            self.send_error(500)
        else:
            self.send_response(206)
            self.send_header("Content-Length", "10000000")
            self.end_headers()
            self.wfile.write(b"root")
            self.close_connection = True


@pytest.mark.parametrize("answer", ["refuses", "breaks off"])
@pytest.mark.parametrize("sound", [0, 1, 2, 3])
def test_a_server_that_fails_at_any_request_is_named(tmp_path, rows, write_rows, answer, sound):
    write_rows(tmp_path / "a.root", rows)
    broken = type("Broken", (_BrokenHandler,), {"sound": sound, "answer": answer})
    with _serving(broken, tmp_path) as url, pytest.raises(DataFileError), EventFile(f"{url}/a.root") as file:
        file.read_column("npho")
    assert broken.served > sound


def test_a_local_file_does_not_load_the_client_of_urls(tmp_path, rows, write_rows):
    """0.13 s of CPU and 8 MB of every process that reads events."""
    write_rows(tmp_path / "a.root", rows)
    code = (
        "import sys; from xectool.rootio.reader import EventFile\n"
        "with EventFile(sys.argv[1]) as file: file.read_column('npho')\n"
        "sys.exit('aiohttp' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.root")], check=True)


def test_a_url_without_its_package_says_what_to_install():
    pytest.importorskip("fsspec")
    try:
        import fsspec_xrootd  # noqa: F401
    except ImportError:
        with pytest.raises(DataFileError, match="pip install fsspec-xrootd"):
            open_tree("root://server.invalid//store/a.root")


def test_a_file_takes_no_address_space_where_it_is_limited(tmp_path, rows, write_rows):
    """Each open file was mapped whole: a training that was estimated to fit could not get memory for its events."""
    write_rows(tmp_path / "a.root", rows)
    code = (
        "import resource, sys; from pathlib import Path; from xectool.rootio.reader import EventFile\n"
        "file = EventFile(sys.argv[1]); mapped = 'a.root' in Path('/proc/self/maps').read_text()\n"
        "limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY\n"
        "sys.exit(mapped == limited or len(file.read_column('npho')) != file.num_entries)"
    )
    for limit in ("unlimited", str(8 << 20)):
        call = ["bash", "-c", f'ulimit -v {limit} && exec "$@"', "bash", sys.executable, "-c", code]
        subprocess.run([*call, str(tmp_path / "a.root")], check=True)


@pytest.mark.parametrize("tree", ["tree", "sub/events", "odd//name"])
@pytest.mark.parametrize("path", ["a.root", "data.x", "root://host.root:1094//store/a.root", "root://host/a.root?x=1"])
def test_all_name_a_tree_of_a_file_as_an_input_that_is_read_back(path: str, tree: str) -> None:
    """A finding named data.x:tree, which no command takes."""
    told = train_files({"attempts": [{"data_files": [{"role": "train", "path": path, "tree": tree}]}]})
    assert {FileFacts(path, tree).where, SourceFile(path, tree, 5).name, *told} == {input_name(path, tree)}
    assert split_tree(input_name(path, tree), tree) == (path, tree)
