#!/usr/bin/env python3
"""Brings api.table up to date with the headers of a CUDA toolkit.

    derive-names.py INCLUDE_DIR api.table > new.table

INCLUDE_DIR is a toolkit's include folder. Nothing of the headers gets into the table but names and version numbers.
Symbols that the table does not know yet come out as `refused:not-yet`; the answers of those it knows are kept.

The rule (verified against cudart 11.8 to 13.5): for every PFN_<name>_v<version>[_ptds|_ptsz] of the typedef headers,
sort the versions of one flavour upward; the k-th version is the k-th existing symbol of <name>, <name>_v2, <name>_v3 …
with the flavour's suffix.
"""
import os
import re
import subprocess
import sys

HEADERS = ["cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler"]
# Names whose versions do not follow the rule.
EXCEPTIONS = {("cuGraphInstantiate", "12000", "-"): "cuGraphInstantiateWithFlags"}


def preprocess(include, text, *defines):
    """The text after the C preprocessor; headers of other libraries that are missing are left out."""
    command = ["gcc", "-E", "-P", "-xc", "-I" + include, *defines, "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def read_header(include, name):
    """The text of a header, empty where the toolkit lacks it (cudaProfiler.h is a package of its own)."""
    path = f"{include}/{name}.h"
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def read_symbols(include):
    """Every exported name, in all flavours."""
    symbols = set()
    for define in ["-DNOTHING", "-D__CUDA_API_VERSION_INTERNAL", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM"]:
        text = preprocess(include, "#include <cuda.h>\n", define)
        symbols |= set(re.findall(r"\b(cu[A-Z]\w*) *\(", text))
    for header in HEADERS[1:]:
        text = read_header(include, header)
        symbols |= set(re.findall(r"CUDAAPI +(cu[A-Z]\w*) *\(", text))
        symbols |= set(re.findall(r"#define +\w+ +(?:__CUDA_API_PT\w\w\()?(cu[A-Z]\w*)", text))
        symbols |= {f"{name}_pt{kind.lower()}" for kind, name in re.findall(r"__CUDA_API_PT(\w\w)\((cu\w+)\)", text)}
    return {symbol for symbol in symbols if "WGL" not in symbol}


def read_versions(include):
    """(name, flavour) -> versions, from the typedef headers. Windows has names of its own."""
    versions = {}
    for header in HEADERS:
        text = read_header(include, header + "Typedefs")
        for name, version, suffix in re.findall(r"PFN_(cu\w+?)_v(\d+)(_pt[sd][sz])?\)", text):
            if "WGL" in name:
                continue
            flavour = suffix[1:] if suffix else "-"
            versions.setdefault((name, flavour), set()).add(int(version))
    return versions


def assign(symbols, versions):
    """symbol -> (name, version, flavour)."""
    assigned = {}
    for (name, flavour), numbers in sorted(versions.items()):
        suffix = "" if flavour == "-" else "_" + flavour
        stems = [name] + [f"{name}_v{k}" for k in range(2, 9)]
        candidates = [stem + suffix for stem in stems if stem + suffix in symbols]
        for k, number in enumerate(sorted(numbers)):
            symbol = EXCEPTIONS.get((name, str(number), flavour))
            if symbol is None and not candidates:
                symbol = name + suffix
            if symbol is None:
                if k >= len(candidates):
                    print(f"no symbol for {name} {number} {flavour}", file=sys.stderr)
                    continue
                symbol = candidates[k]
            assigned.setdefault(symbol, []).append((name, number, flavour))
    return assigned


def read_answers(path):
    """symbol -> answer, of the table as it is."""
    answers = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            fields = line.split("#")[0].split()
            if fields:
                answers[fields[0]] = fields[-1]
    return answers


def main():
    include, table = sys.argv[1:]
    symbols = read_symbols(include)
    assigned = assign(symbols, read_versions(include))
    answers = read_answers(table)
    with open(table, encoding="utf-8") as file:
        for line in file:
            if not line.startswith("#"):
                break
            print(line, end="")
    for symbol in sorted(symbols | set(assigned)):
        queries = ",".join(f"{name}@{number}" + ("" if flavour == "-" else f"/{flavour}")
                           for name, number, flavour in assigned.get(symbol, [])) or "-"
        print(f"{symbol:<48} {queries:<56} {answers.get(symbol, 'refused:not-yet')}")


if __name__ == "__main__":
    main()
