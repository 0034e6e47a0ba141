"""Recognize files that are not prose, by name and by their first lines, so that no model is trained on them by
accident.

`FORMATS` is the one table: what a file is, how it is recognized, and what to do with it. Readers call one of the three
checks at the beginning of every file. JSON Lines are read as they are, whatever they hold.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from xlnet_jax.errors import InputError

BEGINNING = 2**15  # bytes that are looked at
FEW = 5  # lines that are enough to tell
LONGEST = 500  # characters of a line that a slow pattern reads
ANYWAY = 'to read it as it is, write it as JSON Lines, {"text": "…"} on each line'
COLUMN = (
    'write the column with the text as JSON Lines, {"text": "…"} on each line, as pandas does with '
    "to_json('x.jsonl', orient='records', lines=True)"
)
TRAIN = "to train on its sequences, give `fields` sequence:"
SEQUENCE = 'write one sequence on each line without its name, or as JSON Lines, {"text": "…"} on each line'
PANDOC = "convert it to text, as with pandoc -t plain -o x.txt"
OFFICE = "convert it to text, as with libreoffice --convert-to txt"
UNPACK = "unpack it, and name the files in it"
NUMBERS = "it has numbers, no text"
MEDIA = "it has no text"

Lines = Sequence[str]
Check = Callable[[str, str, bytes], None]
"""Refuses a file by its path, the extension of its name (`readers.kind_of`), and its first bytes: raises InputError"""


class Format(NamedTuple):
    """A kind of file that is not prose."""

    kind: str  # with its article
    remedy: str
    ends: str = ""  # extensions of names, but none that is also the code of a language, as in news.pt or news.cs
    begins: bytes = b""  # regular expression for the first bytes
    is_text: bool = False  # only prose is refused; other readers may read it
    fits: Callable[[Lines], bool] | None = None  # for the first lines that are not blank


def _share(lines: Lines, pattern: str, few: int = FEW) -> float:
    """Return the share of the lines that match; 0 for too few lines."""
    find = re.compile(pattern).match
    return sum(bool(find(line)) for line in lines) / len(lines) if len(lines) >= few else 0


def is_fasta(lines: Lines) -> bool:
    sequences = [line for line in lines if line[0] not in ">;"]
    return lines[0][0] in ">;" and _share(sequences, r"[A-Za-z.*-]+\s*$", 1) == 1


def _is_smiles(lines: Lines) -> bool:
    """One molecule on each line: only symbols of atoms and bonds, and in most of them a bond, a branch or a ring."""
    atoms = r"(?:\[[^\]\s]{1,20}\]|Br|Cl|[BCNOPSFIbcnops]|[-=#$:/\\.()%\d~*])+"
    in_most = r"(?=\S*[CcNnO])(?=\S*[=#()\[\]\d])" + atoms
    return _share(lines, rf"{atoms}(\s|,|$)") > 0.95 and _share(lines, rf"{in_most}(\s|,|$)") > 0.5


NUMBER = r"[-+]?(0x[\da-f]+|\d[\d.:/eE+-]*)"


def _is_table(lines: Lines) -> bool:
    """Nearly all lines have as many separators; commas and semicolons are not those of sentences."""
    lines = [line for line in lines if line[0] != "#"]
    for separator in "\t,;|":
        quotes = None if separator == "\t" else '"'
        try:
            rows = list(csv.reader((line.strip() for line in lines), delimiter=separator, quotechar=quotes))
        except csv.Error:
            continue
        if len(rows) < 3:
            continue
        ((columns, count),) = Counter(map(len, rows)).most_common(1)
        if columns < 2 or count < 0.95 * len(rows):
            continue
        is_header = all(re.fullmatch(r"\s*[A-Za-z_][\w ./()-]{0,40}", name) for name in rows[0])
        is_numbered = _share([row[0] for row in rows if row], rf"{NUMBER}$|$", 3) > 0.9 or _share(lines, '"', 3) > 0.9
        spaced = sum(line.count(f"{separator} ") for line in lines) / sum(line.count(separator) for line in lines)
        in_sentences = separator != "\t" and (spaced > 0.5 or not (columns > 3 or is_header or is_numbered))
        if not in_sentences or _share([value for row in rows for value in row], rf"\s*{NUMBER}\s*$") > 0.5:
            return True
    return False


def _is_code(lines: Lines) -> bool:
    """Most lines are statements, without comments; or a few long ones have more punctuation than any prose."""
    comments, text = r"\s*(#|//|/\*|\*[/ ]|\*$|\"\"\"|<!--)", "".join(lines)
    lines = [line[:LONGEST] for line in lines if not re.match(comments, line)] or lines
    signs = sum(map(text.count, "{}();=<>[]"))
    return _share(lines, CODE) > 0.5 or (len(lines) < FEW and signs > 0.08 * len(text) > 16)


def _is_xml(lines: Lines) -> bool:
    tag = r"\s*</?[A-Za-z][\w:.-]*(\s+[\w:.-]+\s*=.*)?/?>"
    return _share(lines, tag) > 0.5 and any("</" in line for line in lines)


def _is_sql(lines: Lines) -> bool:
    lines = [line for line in lines if not line.startswith("--")]
    statement = r"\s*(CREATE|ALTER|DROP|INSERT INTO|DELETE FROM|GRANT|SELECT|BEGIN|COMMIT)\b"
    return _share(lines, statement, 1) > 0.2 and any(line.rstrip().endswith(";") for line in lines)


def _is_yaml(lines: Lines) -> bool:
    """Nearly all lines have a key or begin an item, and keys differ, unlike the speakers of a dialogue."""
    keys = [line.partition(":")[0] for line in lines if line[0] not in " -#"]
    return _share(lines, r"\s*(- |[\w./-]+:(\s|$)|---|#)") > 0.8 and 1 < len(keys) < 1.2 * len(set(keys))


CODE = r"""(?xa) [\0-\x7f]* ( [(){}=\[\]<>&_] [^;]* ; | [{}] | \) \s* \{ | => ) \s* $
  | \s* ( [)\]}]+[,;]? | \w+ ; ) \s* $
  | \s* ( // | /\* | \*/ | @\w+ (\(|$) | <\?php | \#include | from\ [\w.]+\ import\  | import\ [\w.]+ (\ as\ \w+)? ;? $
  | (def|class|fn|func|function|sub|interface|struct|enum|impl|trait|module|namespace|package|using)\ [\w.:<>]+ .*
  | (public|private|protected|static|const|let|var|val|void|int|float|double|char|bool|auto|async|export)\ \w+ .*
  | (if|elif|for|while|switch|with|case|except|catch|def)\b .* [:{]\s*$ | (else|try|finally|do)\s*[:{]\s*$
  | (return|raise|throw|assert|yield|pass|break|continue|end|fi|done|esac)\b ( .* [;)\]\w"'] )? $
  | [$\w.\[\]"'>-]+ (\s*:\s*[\w\[\], |.]+)? \s* [-+*/|&:?]?= \s* \S | [\w.:$]+ \( )
"""

FORMATS = (
    # ---- sequences and tables ----
    Format("FASTA", f"{TRAIN}protein", "fasta fas fsa faa fna ffn frn mpfa", is_text=True, fits=is_fasta),
    Format("FASTQ", "convert it to FASTA, as with seqtk seq -A", "fastq fq",
           rb"@[^\n]*\n[A-Za-z.]+\r?\n\+", True),
    Format("a list of molecules (SMILES)", f"{TRAIN}smiles", "smi smiles", is_text=True, fits=_is_smiles),
    Format("a file of molecules", SEQUENCE, "sdf mol2 pdb cif mmcif",
           rb"(HEADER {4}\w|ATOM  +\d|data_\w+\r?\n|.{0,300}\d V[23]000\b)", True),
    Format("a file of annotated sequences", SEQUENCE, "gbk embl sam bam cram vcf bcf gff gff3 gtf stockholm",
           rb"(LOCUS  +|ID   \w+;|@(HD|SQ)\t|##fileformat=VCF|##gff-version|# STOCKHOLM|CLUSTAL.{,30}align|BAM\x01)",
           True),
    Format("a spreadsheet", COLUMN, "xls xlsx xlsm xlsb ods",
           rb"PK\x03\x04(?=.{,4000}(xl/|opendocument\.spreadsheet))"),
    Format("statistical data", COLUMN, "sav dta sas7bdat rds rdata", rb"(\$FL2|<stata_dta>|RDX[23]\n)"),
    # ---- tags of words ----
    Format("words with tags (CoNLL)", "write its sentences, one on each line", "conll conllu conllx iob iob2",
           rb"# (sent_id|newdoc|text|global\.columns) ?=|-DOCSTART-", True,
           lambda lines: _share(lines, r"\S+[ \t](.*[ \t])?(O|[BIESLU]-[\w-]+)\s*$") > 0.9),
    # ---- documents ----
    Format("a PDF document", "convert it to text, as with pdftotext", "pdf", rb"%PDF-"),
    Format("a PostScript document", "convert it to text, as with ps2ascii", "eps", rb"%!PS"),
    Format("a Word document", PANDOC, "docx docm", rb"PK\x03\x04(?=.{,4000}word/)"),
    Format("an office document", OFFICE, "doc dot ppt pptx odp key pages wpd msg vsd",
           rb"(\xd0\xcf\x11\xe0|PK\x03\x04(?=.{,4000}ppt/))"),
    Format("an OpenDocument text", PANDOC, "odt", rb"PK\x03\x04(?=.{,200}opendocument)"),
    Format("an EPUB book", PANDOC, "epub", rb"PK\x03\x04(?=.{,200}application/epub)"),
    Format("an RTF document", PANDOC, "rtf", rb"\{\\rtf"),
    Format("LaTeX", PANDOC, "tex latex sty bib",
           rb"\s*(%[^\n]*\n\s*)*(\\(documentclass|begin|section|input|usepackage|chapter)\b|@\w+ ?\{[\w:-]+,)", True),
    # ---- the web and data for programs ----
    Format("HTML", "keep its text only, as with pandoc -t plain or trafilatura", "html htm xhtml mhtml shtml",
           rb"\s*(?i:<!doctype html|<html\b|<head\b|<body\b)", True),
    Format("XML", "keep its text only", "xml svg rss atom xsl xsd wsdl kml gpx musicxml tei",
           rb"\s*<(\?xml\b|!DOCTYPE\b|svg\b)", True, _is_xml),
    Format("a notebook", "convert it, as with jupyter nbconvert --to markdown", "ipynb",
           rb'\s*\{\s*"(cells|nbformat|metadata)"\s*:', True),
    Format("JSON Lines by another name", "name it .jsonl", "", rb'\{ *"[^\n]*\}[ \r]*\n *\{ *"', True),
    Format("JSON", "write one object per line into a .jsonl file, as with jq -c '.[]' x.json > x.jsonl",
           "geojson json5",
           rb'\s*(\{\s*"(\\.|[^"\\])*"\s*:|\[\s*(\{\s*"|"[^"]*"\s*[,\]]|\[|-?\d+\s*,\s*-?\d))', True),
    Format("YAML", ANYWAY, "yaml yml", is_text=True, fits=_is_yaml),
    Format("a file of settings", ANYWAY, "toml ini cfg conf properties plist lock", is_text=True,
           fits=lambda lines: _share(lines, r"\[[\w. \"-]+\]\s*$|[\w.-]+\s*=\s*\S|[#;]") > 0.9),
    Format("SQL", ANYWAY, "sql ddl", is_text=True, fits=_is_sql),
    Format("a log", ANYWAY, "log", is_text=True, fits=lambda lines: _share(
        lines, r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d|\w{3} [ \d]\d \d\d:\d\d:\d\d |\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:|"
        r"(DEBUG|INFO|WARN|WARNING|ERROR|FATAL)\b") > 0.6),
    Format("subtitles", "keep the lines that are spoken", "srt vtt ass ssa sbv",
           rb"\s*(WEBVTT|\[Script Info\]|\d+\s*\r?\n\d\d:\d\d:\d\d[,.]\d{3} --> )", True),
    Format("mail", "keep its text only", "eml mbox",
           rb"From \S+ +\w{3} \w{3} +\d|(Return-Path|Received|Delivered-To|MIME-Version): ", True),
    Format("a patch", ANYWAY, "diff patch", rb"(diff --git |--- \S[^\n]*\n\+\+\+ |Index: \S+\r?\n===)", True),
    Format("a key or certificate", "keep it out of training text", "pem crt cer csr p12 gpg",
           rb"-----BEGIN [A-Z ]+-----"),
    Format(
        "source code", ANYWAY, "py pyi js mjs cjs jsx tsx java c cc cpp cxx h hh hpp cu go rb scala swift dart php jl "
        "css scss bat ps1 bash asm vue f90 clj erl proto cmake gradle lua vb", rb"(#! ?/|<\?php)", True, _is_code
    ),
    # ---- arrays ----
    Format("a NumPy array", NUMBERS, "npy", rb"\x93NUMPY"),
    Format("NumPy arrays", NUMBERS, "npz", rb"PK\x03\x04.{26}[^/]{1,100}\.npy"),
    Format("weights of PyTorch", NUMBERS, "pth ckpt",
           rb"PK\x03\x04(?=.{,200}/(data\.pkl|\.format_version|byteorder))"),
    Format("a pickle", "it could run code: write its texts as JSON Lines", "pkl pickle joblib",
           rb"\x80[\x02-\x05](\x95|[\x58-\x7d\x8c])"),
    Format("an HDF5 file", NUMBERS, "h5 hdf5 hdf he5", rb"\x89HDF\r\n"),
    Format("weights (safetensors)", NUMBERS, "safetensors", rb"[^\0].{,6}\0+\{\s*\""),
    Format("a model for other programs", NUMBERS, "gguf onnx tflite pb", rb"GGUF.\0|.{4}TFL3"),
    Format("an array of MATLAB or NetCDF", NUMBERS, "mat nc cdf", rb"MATLAB 5\.0 MAT|CDF[\x01\x02\x05]"),
    Format("TFRecord or ArrayRecord", "name the folder of its dataset, as tfds:FOLDER",
           "tfrecord tfrecords array_record"),
    # ---- databases ----
    Format("an SQLite database", COLUMN, "sqlite sqlite3 db", rb"SQLite format 3\0"),
    Format("an Arrow or Feather table", "write it as Parquet", "arrow feather ipc",
           rb"(ARROW1\0|FEA1\0|\xff{4}.\0{0,3})"),
    Format("Parquet by another name", "name it .parquet", "", rb"PAR1[\0-\x1f]"),
    Format("an Avro table", "write it as Parquet", "avro", rb"Obj\x01"),
    Format("an ORC table", "write it as Parquet", "orc", rb"ORC[\0-\x1f]"),
    # ---- pictures, sound, films, fonts ----
    Format("a picture", MEDIA, "png jpg jpeg gif bmp tif tiff webp ico heic avif psd dcm",
           rb"(\x89PNG|\xff\xd8\xff|GIF8[79]a|BM.{4}\0{4}|II\*\0|MM\0\*|RIFF.{4}WEBP|\0\0[\x01\x02]\0.\0|8BPS|"
           rb".{128}DICM)"),
    Format("sound", MEDIA, "wav mp3 flac ogg oga opus m4a aac aif aiff wma mid midi",
           rb"(MThd|RIFF.{4}WAVE|ID3[\x02-\x04]|\xff[\xf1-\xf3\xf9-\xfb]|fLaC|OggS|FORM.{4}AIF|\.snd\0)"),
    Format("a film", MEDIA, "mp4 mkv avi mov webm wmv flv mpg mpeg m4v 3gp",
           rb"(.{4}ftyp|\x1a\x45\xdf\xa3|RIFF.{4}AVI |FLV\x01|\0\0\x01[\xb3\xba]|\x30\x26\xb2\x75)"),
    Format("a font", MEDIA, "ttf otf woff woff2", rb"(\0\x01\0\0\0|OTTO\0|wOF[F2]|ttcf\0)"),
    # ---- archives and programs ----
    Format("compressed by gzip", "let its name end in .gz", "", rb"\x1f\x8b"),
    Format("compressed by xz", "let its name end in .xz", "", rb"\xfd7zXZ\0"),
    Format("compressed by zstd", "let its name end in .zst", "", rb"\x28\xb5\x2f\xfd"),
    Format("compressed by bzip2", "let its name end in .bz2", "", rb"BZh\dC?1AY&SY"),
    Format("compressed", "decompress it", "lz4 lzma lzo lz", rb"(\x04\x22\x4d\x18|\x5d\0\0.{2}\0|\x1f\x9d|LZIP\x01)"),
    Format("an archive", UNPACK, "zip tar tgz tbz tbz2 txz 7z rar jar war apk deb rpm iso dmg cab whl egg",
           rb"(PK[\x03\x05][\x04\x06]|7z\xbc\xaf|Rar!\x1a|.{257}ustar[\0 ]|!<arch>\n|\xed\xab\xee\xdb|MSCF\0)"),
    Format("a program", MEDIA, "exe dll dylib class pyc wasm",
           rb"(\x7fELF|MZ.{1,60}\0\0|\xca\xfe\xba\xbe|\xcf\xfa\xed\xfe|\0asm|.{2}\r\n.{0,12}\xe3)"),
    Format("a table (CSV or TSV)", f"to train on columns as symbols, give `fields` NAME:LEVEL; or {COLUMN}",
           "csv tsv tab psv", is_text=True, fits=_is_table),
)  # fmt: skip
"""Kinds of files in the order in which they are tried"""
_BY_END = {end: format_ for format_ in FORMATS for end in format_.ends.split()}
_BEGINS = [(re.compile(format_.begins, re.DOTALL), format_) for format_ in FORMATS if format_.begins]


def require_readable(path: str, end: str, beginning: bytes) -> None:
    """Refuse a file that is recognized by its first bytes as one that no reader reads as text."""
    if found := _by_bytes(beginning, is_text=False):
        raise InputError(f"text {path}: it is {found.kind}, not text; {found.remedy}")


def require_prose(path: str, end: str, beginning: bytes) -> None:
    """Refuse a file that is recognized as something other than prose."""
    by_content = _by_bytes(beginning, is_text=True) or _by_lines(beginning)
    if found := _BY_END.get(end.removeprefix(".")) or by_content:
        rename = "" if by_content else "; if it is prose, let its name end in .txt"
        raise InputError(f"text {path}: it is {found.kind}, not prose; {found.remedy}{rename}")


def require_records(path: str, end: str, beginning: bytes) -> None:
    """Refuse a file that is recognized as something other than lines, a table or FASTA."""
    by_end = _BY_END.get(end.removeprefix("."))
    if found := by_end if by_end and not by_end.is_text else _by_bytes(beginning, is_text=True):
        raise InputError(f"text {path}: it is {found.kind}, not a table or FASTA; {found.remedy}")


def _by_bytes(beginning: bytes, is_text: bool) -> Format | None:
    begin = beginning[:BEGINNING].removeprefix(codecs.BOM_UTF8)
    return next((f for pattern, f in _BEGINS if (is_text or not f.is_text) and pattern.match(begin)), None)


def _by_lines(beginning: bytes) -> Format | None:
    text = beginning[:BEGINNING].decode(errors="replace").removeprefix("\ufeff")
    whole = text if len(beginning) < BEGINNING else text.rpartition("\n")[0] or text
    lines = [line for line in whole.splitlines() if line.strip()]
    return next((f for f in FORMATS if f.fits and f.fits(lines)), None) if lines else None
