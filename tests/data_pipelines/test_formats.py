"""Files that are not prose are recognized by their names or first lines, and no model learns from them; prose is
read."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import shutil
import sqlite3
import struct
import tarfile
import zipfile
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.orc
import pyarrow.parquet as pq
import pytest
from backports import zstd

from data_pipelines import sources
from data_pipelines.formats import FORMATS
from xlnet_jax.errors import InputError

TABLE = pa.table({"text": ["a", "b"], "label": [0, 1]})


def zipped(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return file.getvalue()


def saved(save, *given, **named):
    file = io.BytesIO()
    save(file, *given, **named)
    return file.getvalue()


def sqlite():
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE t (text)")
    return database.serialize()


def tar():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4s", 13, b"IHDR") + bytes(13) + zlib.compress(bytes(100))
PYTHON = """import json
from pathlib import Path

def read(path):
    content = Path(path).read_text()
    if not content:
        raise ValueError("empty")
    return json.loads(content)
"""
C = '#include <stdio.h>\n\nint main(void) {\n    int i = 0;\n    printf("%d\\n", i);\n    return 0;\n}\n'
JAVASCRIPT = "const a = require('a');\n\nfunction f(x) {\n  let y = x + 1;\n  return y;\n}\n\nmodule.exports = { f };\n"
XML = '<?xml version="1.0"?>\n<texts>\n<text id="1">It was a truth.</text>\n</texts>\n'
HTML = "<!DOCTYPE html>\n<html><head><title>A page</title></head>\n<body><p>It was a truth.</p></body></html>\n"
FASTA = ">sp|P1|A first protein OS=Mus\nMKVLAAGIVG\nLLLAQWERTY\n>sp|P2|Another\nMSTNPKPQRK\n"
FILES = {
    "FASTA": ("fasta", FASTA),
    "FASTQ": ("fastq", "@r1 x\nACGTN\n+\nIIII#\n@r2\nGGCA\n+r2\nIIII\n"),
    "a list of molecules": (
        "smi", "CCO ethanol\nc1ccccc1O phenol\nCC(=O)Oc1ccccc1C(=O)O aspirin\nC[C@H](N)C(=O)O ala\nCCN\n"
    ),
    "a file of molecules": ("pdb", "HEADER    HYDROLASE    01-JAN-00\nATOM      1  N   MET A   1      27.3\n"),
    "a file of annotated sequences": ("vcf", "##fileformat=VCFv4.2\n#CHROM\tPOS\tID\n1\t100\trs1\n"),
    "a spreadsheet": ("xlsx", zipped(**{"_rels/.rels": "x", "xl/workbook.xml": "x"})),
    "words with tags": ("conll", "The O\nsea B-LOC\nwas O\ncalm O\n\nAnna B-PER\nknew O\n" * 2),
    "a PDF": ("pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj"),
    "a PostScript": ("eps", "%!PS-Adobe-3.0\n/Times findfont\n"),
    "a Word": ("docx", zipped(**{"[Content_Types].xml": "x", "word/document.xml": "It was"})),
    "an office": ("doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(100)),
    "an OpenDocument": ("odt", zipped(mimetype="application/vnd.oasis.opendocument.text")),
    "an EPUB": ("epub", zipped(mimetype="application/epub+zip")),
    "an RTF": ("rtf", "{\\rtf1\\ansi It was a truth.}"),
    "LaTeX": ("tex", "% a comment\n\\documentclass{article}\n\\begin{document}\nIt was.\n"),
    "HTML": ("html", HTML),
    "XML": ("xml", XML),
    "a notebook": ("ipynb", json.dumps({"cells": [], "nbformat": 4}, indent=1)),
    "JSON Lines by another name": ("", '{"text": "a"}\n{"text": "b"}\n'),
    "JSON": ("geojson", json.dumps([{"text": "It was."}] * 3, indent=2)),
    "YAML": ("yaml", "---\nname: a run\nsteps: 7\ntexts:\n  - one\n  - two\nseed: 1\n"),
    "a file of settings": ("toml", '[build-system]\nrequires = ["a"]\n\n[project]\nname = "x"\nversion = "1"\n'),
    "SQL": ("sql", "CREATE TABLE t (\n  text varchar(80)\n);\n" + "INSERT INTO t VALUES ('It was.');\n" * 2),
    "a log": ("log", "2024-01-02 10:00:00,123 INFO began\n2024-01-02 10:00:01,001 WARNING slow\n" * 4),
    "subtitles": ("srt", "1\n00:00:01,000 --> 00:00:02,000\nIt was a truth.\n"),
    "mail": ("mbox", "From me@host Sat Jan  3 01:05:34 1996\nSubject: x\n\nIt was.\n"),
    "a patch": ("diff", "diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"),
    "a key": ("pem", "-----BEGIN CERTIFICATE-----\nMIIB\n"),
    "source code": ("py", PYTHON),
    "a NumPy array": ("npy", saved(np.save, np.zeros(3))),
    "NumPy arrays": ("npz", saved(np.savez, a=np.zeros(3))),
    "a pickle": ("pkl", pickle.dumps({"text": "a"})),
    "an HDF5": ("h5", b"\x89HDF\r\n\x1a\n" + bytes(20)),
    "weights (safetensors)": ("safetensors", struct.pack("<Q", 60) + b'{"a":{"dtype":"F32","shape":[1]}}' + bytes(40)),
    "a model": ("gguf", b"GGUF\3\0\0\0"),
    "an array of MATLAB": ("mat", b"MATLAB 5.0 MAT-file, Platform: GLNXA64"),
    "an SQLite": ("sqlite", sqlite()),
    "an Arrow": ("feather", saved(lambda file: pyarrow.feather.write_feather(TABLE, file))),
    "Parquet by another name": ("", saved(lambda file: pq.write_table(TABLE, file))),
    "an Avro": ("avro", b"Obj\1\4\x14avro.codec\x08null"),
    "an ORC": ("orc", saved(lambda file: pyarrow.orc.write_table(TABLE, file))),
    "a picture": ("png", PNG),
    "sound": ("wav", b"RIFF\x24\0\0\0WAVEfmt "),
    "a film": ("mp4", b"\0\0\0\x18ftypmp42"),
    "a font": ("ttf", b"\0\1\0\0\0\x0f\0\x80"),
    "compressed by gzip": ("", gzip.compress(b"It was a truth.\n")),
    "compressed by xz": ("", lzma.compress(b"It was a truth.\n")),
    "compressed by zstd": ("", zstd.compress(b"It was a truth.\n")),
    "compressed by bzip2": ("", bz2.compress(b"It was a truth.\n")),
    "an archive": ("zip", zipped(a_dot_txt="It was a truth.")),
    "a program": ("exe", b"MZ\x90\0\3\0\0\0\4\0\0\0\xff\xff\0\0"),
    "a table": ("csv", "text,label\nhello,pos\nbad,neg\n"),
}  # fmt: skip
OTHERS = {
    "a table": ("text\tlabel\nIt was a truth.\t1\nHe left.\t0\n", "text;label\nhello, world;pos\nbad;neg\n",
                "text, label\nhello,pos\nbad,neg\n", 'id,text\n1,"Hello, he said."\n2,"It was, and\nit is."\n3,No.\n',
                "1.5,2.25,3\n4,5.5,6\n7,8,9.1\n"),
    "source code": (C, JAVASCRIPT, "#!/bin/sh\necho hello\n"),
    "a picture": (b"\xff\xd8\xff\xe0\0\x10JFIF", b"GIF89a\1\0", b"RIFF\x24\0\0\0WEBPVP8 "),
    "sound": (b"ID3\3\0\0", b"OggS\0\2", b"fLaC\0\0\0"),
    "an archive": (tar(), b"7z\xbc\xaf\x27\x1c\0\4", b"Rar!\x1a\7\0"),
    "JSON": ('{\n "text": "It was.",\n "label": 1\n}\n', '[{"text": "a"}, {"text": "b"}]'),
}  # fmt: skip
"""More examples of these kinds, without a name"""


def write(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_not_prose_is_refused_with_and_without_a_telling_name(tmp_path, kind):
    end, content = FILES[kind]
    for name in ("text.txt", "text", *([f"text.{end}"] if end else [])):
        with pytest.raises(InputError, match=rf"text .*{name}: it is {kind.replace('(', '.').replace(')', '.')}.*; "):
            list(sources.read_lines(sources.find([write(tmp_path / name, content)])))


@pytest.mark.parametrize(("kind", "content"), [(kind, text) for kind, texts in OTHERS.items() for text in texts])
def test_other_files_of_a_kind_are_recognized_by_their_first_lines(tmp_path, kind, content):
    with pytest.raises(InputError, match=f"it is {kind}"):
        list(sources.read_lines(sources.find([write(tmp_path / "text", content)])))


def test_a_name_is_enough_and_no_end_of_a_name_means_two_kinds():
    ends = [end for format_ in FORMATS for end in format_.ends.split()]
    assert len(ends) == len(set(ends))
    languages = "ar cs de en es fa fr hi it ja ko mk ml pl ps pt ro ru sh so ts tr uk vi zh".split()
    assert not {*languages, "txt", "md", "text", "jsonl", "ndjson", "json", "parquet"} & set(ends)
    assert len(FORMATS) >= 50


def test_a_foreign_file_ends_prepare_in_one_line_compressed_in_a_folder_or_by_a_glob(refused, place):
    write(place / "a.csv.gz", gzip.compress(b"It is one column, so only its name tells.\n" * 100))
    line = refused("--source", "a.csv.gz")
    assert (
        "text a.csv.gz: it is a table (CSV or TSV), not prose; to train on columns as symbols, give --fields " in line
    )
    assert "NAME:LEVEL; or write the column with the text as JSON Lines" in line
    assert line.endswith("; if it is prose, let its name end in .txt\n")
    for folder in ("one", "two"):
        (place / folder).mkdir()
        write(place / folder / "b.fa.xz", lzma.compress(FASTA.encode() * 50))
    shutil.copy("good.txt", "two/a.text")
    for name in ("one", "two/*"):
        assert "b.fa.xz: it is FASTA, not prose; to train on its sequences, give --fields sequence:protein" in refused(
            "--source", name
        )


def test_readers_of_json_lines_refuse_what_is_no_text_and_say_how_to_divide_one_json_value(refused, place):
    write(place / "a.jsonl", zipped(a="x"))
    assert "a.jsonl: it is an archive, not text; unpack it" in refused("--source", "a.jsonl")
    write(place / "a.json", json.dumps([{"text": "It was."}] * 3, indent=1))
    assert "write one object on each line, as with jq -c '.[]' x.json > x.jsonl" in refused("--source", "a.json")


PROSE = {
    "commas in every line": "Tyger Tyger, burning bright,\nIn the forests, of the night;\nWhat hand, or eye,\n" * 3,
    "semicolons": "O wild West Wind, thou breath of Autumn's being;\nThou, from whose presence the leaves dead;\n" * 4,
    "answers": "> Did you go?\nYes, I did.\n> When?\nOn Monday.\n" * 4,
    "headings": "# Title\n\nIt was a truth.\n\n- one\n- two\n\n## Next\n\nUse `<tag>` and {braces}.\n",
    "a dialogue": "FIRST CITIZEN: Before we proceed\nALL: Speak.\nFIRST CITIZEN: You are resolved\nALL: Yes.\n" * 4,
    "a tag": "<title> is a tag of HTML.\nIt stands in the head.\nBrowsers show it above the page.\n",
    "Chinese": "床前明月光,疑是地上霜。\n举头望明月,低头思故乡。\n" * 5,
    "brackets": "[Illustration: A house]\n\nIt was a truth.\n[1] Smith, J. (1999).\n",
    "tabs": "\tIt was a truth.\n\tHe left.\n\tShe stayed.\n",
    "numbers": "1 2 3 5 8\n13 21 34\n55 89 144\n233\n377\n",
    "one sequence on each line": "MKVLAAGIVG\nMSTNPKPQRK\nACDEFGHIKL\n" * 4,
    "words": "ONE\nTWO\nTHREE\nFOUR\nNASA\nCNN\n",
    "masked words": "<unk> was the first .\n<unk> and <unk> met .\n" * 5,
    "a beginning in ASCII": "BMW is a company.\nIt makes cars.\n",
    **{
        begin: f"{begin} is how this text begins.\nIt goes on.\n"
        for begin in [*"OTTO PAR1 ARROW1 .snd CLUSTAL GGUF ORC MZ ID3 RIFF LZIP CDF BM".split(), "MATLAB 5.0"]
    },
    "short": "Hi.\n",
    "a dash": "--90 percent of the cost;\n--60 percent of the plan;\n" * 4,
}


@pytest.mark.parametrize("name", PROSE)
def test_prose_is_read(tmp_path, name):
    assert list(sources.read_lines(sources.find([write(tmp_path / "a.txt", PROSE[name])])))


def test_the_novels_are_read_wherever_they_are_cut(tmp_path):
    with open(sources.embedded()[0]) as novels:
        lines = novels.read().split("\n")
    for begin in range(0, len(lines), 97):
        text = "\n".join(lines[begin : begin + 8])
        if text.strip():
            assert list(sources.read_lines(sources.find([write(tmp_path / "a.txt", text)])))
