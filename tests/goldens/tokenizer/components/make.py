"""Makes cases.jsonl: what Hugging Face's tokenizers (0.23) does with single components. Needs `pip install tokenizers`.

The first line is BASE. Every other line holds the members of a tokenizer.json that differ from it and cases [text, ids,
ids without special tokens, decoded with special tokens, decoded without], null for "the same as before". BASE spells a text as <0xNN> bytes, with "#" before every character of a
piece but its first, so that ids show both the normalized text and the pieces.
"""
import base64
import json
import struct
from pathlib import Path

from tokenizers import Tokenizer

BYTES = {f"<0x{i:02X}>": i for i in range(256)}
BASE = {
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": None, "post_processor": None,
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "#",
              "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True, "ignore_merges": False,
              "vocab": BYTES, "merges": []},
}
TEXTS = ["", " ", "a", "Hello, World! 123 4٣½", "  two  spaces\t\ttabs\r\n\nnew lines \u00a0\u3000\u2003x ",
         "Ünïcödé ÀÉÎÕÜ ßẞ İı ǅ ﬁ ② Å", "e\u0301\u0327 a\u0327\u0301 가 한글 각", "中文字 日本語かなカナー text한국",
         "it's I'LL they've don't", "a--b--c--", "--a", "x\u200by\u200dz\ufeffw\ufffd\u0000\u0001\x7f\u0085", "▁under▁score _x_",
         "🙂👨‍👩‍👧 🇩🇪 ✔️", "don't stop ... now ? ok !", "<0x41><s>[MASK] word sword words word", "αβγ АБВ אבג ابج हिन्दी ไทย"]


def double_array(mapping):
    """A darts-clone double array (and the replacements) for SentencePiece's charsmap; keys are tried in byte order."""
    replaced, offsets = b"", {}
    for key in sorted(mapping):
        offsets[key] = len(replaced)
        replaced += mapping[key].encode() + b"\0"
    trie = {}
    for key in mapping:
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = offsets[key]
    units, used = {0: 0}, {0}

    def place(node, at):
        labels = [0 if b is None else b for b in node]
        base = 1
        # An offset below 2^21 is stored as it is; xor with the parent's place leads to the children.
        while any((at ^ base ^ b) in used for b in labels) or (at ^ base) in used and None not in node:
            base += 1
        units[at] |= base << 10 | (256 if None in node else 0)
        where = {b: at ^ base ^ (0 if b is None else b) for b in node}
        used.update(where.values())
        for b, child in node.items():
            units[where[b]] = 1 << 31 | child if b is None else b
        for b, child in node.items():
            if b is not None:
                place(child, where[b])

    place(trie, 0)
    array = [units.get(i, 0) for i in range(max(units) + 256)]
    blob = struct.pack(f"<{len(array)}I", *array)
    return base64.b64encode(struct.pack("<I", len(blob)) + blob + replaced).decode()


def bert(**set_):
    return {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False, "strip_accents": None,
            "lowercase": False, **set_}


def replace(content, **pattern):
    return {"type": "Replace", "pattern": pattern, "content": content}


def split(behavior, invert=False, **pattern):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def added(id_, content, **set_):
    return {"id": id_, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **set_}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def metaspace(**set_):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True, **set_}


CHARSMAP = {"ﬁ": "fi", "②": "2", "\u3000": " ", "Å": "Å", "e\u0301": "é", "\u0001": "", "½": "1⁄2", "カ": "か", "\t": " "}
PLAIN = {"normalizer": ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"],
         "pre_tokenizer": ["BertPreTokenizer", "Whitespace", "WhitespaceSplit", "UnicodeScripts"]}
RULES = [{kind: {"type": name}} for kind, names in PLAIN.items() for name in names]
RULES += [{"normalizer": n} for n in [
    bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True), bert(lowercase=True),
    bert(clean_text=True, handle_chinese_chars=True, lowercase=True, strip_accents=False),
    {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "Strip", "strip_left": False, "strip_right": True},
    {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "▁"},
    replace("_", String="--"), replace("", Regex=r"\s+"), replace("<$0>", Regex="[a-c]+"), replace("|", String=" "),
    {"type": "Precompiled", "precompiled_charsmap": double_array(CHARSMAP)},
    sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}, replace(" ", Regex=" {2,}"))]]
RULES += [{"pre_tokenizer": p} for p in [
    {"type": "Digits", "individual_digits": True}, {"type": "Digits", "individual_digits": False},
    {"type": "CharDelimiterSplit", "delimiter": "-"}, {"type": "FixedLength", "length": 3},
    *({"type": "ByteLevel", "add_prefix_space": a, "trim_offsets": True, "use_regex": r} for a in (True, False) for r in (True, False)),
    *({"type": "Punctuation", "behavior": b} for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")),
    *(split(b, i, String="-") for b in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous") for i in (False, True)),
    *(metaspace(prepend_scheme=s, split=c) for s in ("always", "first", "never") for c in (True, False)),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace(prepend_scheme="first")),
    sequence("pretokenizers", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, {"type": "Digits", "individual_digits": True}),
    sequence("pretokenizers", {"type": "Whitespace"}, sequence("pretokenizers", {"type": "Digits", "individual_digits": True})),
    *(split("Isolated", Regex=r) for r in (
        "", r"\w+", r"\W+", r"\s+", r"[^\S\n]+", r"\h+", r"\p{Han}+", r"\p{Letter}+", r"[\p{L}&&[^\p{Han}]]+", r"[^\p{L}&&[^ ]]",
        r"[a-c[x-z]\d]+", r"\p{N}{1,3}+", r"o{,2}", r"(?i:'ll|'ve)", r"(?m:o.*)", r"^.", r".$", r"\u4e2d", r"[[:punct:]]+",
        r"(?<=o)\s", r"\s+(?!\S)|\s+", r"(?>a|ab)c", r"[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}", r"(-)\1", r"\bw"))]]
LLAMA = sequence("decoders", replace(" ", String="▁"), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})
RULES += [{"pre_tokenizer": metaspace(prepend_scheme="first"), "decoder": d} for d in [
    None, LLAMA, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "WordPiece", "prefix": "<0", "cleanup": True},
    {"type": "WordPiece", "prefix": "<0x2", "cleanup": False}, {"type": "BPEDecoder", "suffix": "0>"}, metaspace(replacement="x"),
    metaspace(replacement="x", prepend_scheme="never"), {"type": "CTC", "pad_token": "<0x61>", "word_delimiter_token": "0", "cleanup": True},
    replace("#", Regex="[0-9]+"), {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    sequence("decoders", {"type": "ByteFallback"}, {"type": "Fuse"}, replace("", String="#"), {"type": "Strip", "content": "a", "start": 2, "stop": 1}),
    sequence("decoders", {"type": "ByteFallback"}, {"type": "Fuse"}, replace("=", Regex="#+"), metaspace()),
    sequence("decoders", {"type": "ByteFallback"}, {"type": "WordPiece", "prefix": "#", "cleanup": True}),
    sequence("decoders", {"type": "ByteFallback"}, {"type": "Strip", "content": "#", "start": 1, "stop": 1})]]
TOKENS = [added(256, "<s>", special=True), added(257, "[MASK]", lstrip=True, special=True), added(258, "word", single_word=True, normalized=True),
          added(259, "  ", rstrip=True), added(260, "--", rstrip=True, lstrip=True), added(261, "Hello", normalized=True), added(262, "ell"),
          added(263, "stop now", normalized=True), added(264, "...", special=True, rstrip=True)]
RULES += [{"added_tokens": TOKENS, **more} for more in [
    {}, {"normalizer": {"type": "Lowercase"}}, {"normalizer": {"type": "Prepend", "prepend": "▁"}, "decoder": LLAMA},
    {"post_processor": {"type": "BertProcessing", "sep": ["...", 264], "cls": ["<s>", 256]}},
    {"post_processor": {"type": "RobertaProcessing", "sep": ["...", 264], "cls": ["<s>", 256], "trim_offsets": True, "add_prefix_space": True}},
    {"post_processor": sequence("processors", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "S", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "E", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
         "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
         "special_tokens": {"S": {"id": "S", "ids": [256, 257], "tokens": ["<s>", "[MASK]"]}, "E": {"id": "E", "ids": [264], "tokens": ["..."]}}})}]]


def bpe(vocab, merges=(), **set_):
    return {"model": {**BASE["model"], "continuing_subword_prefix": None, "byte_fallback": False,
                      "vocab": {t: i for i, t in enumerate(vocab)}, "merges": list(merges), **set_}}


LETTERS = list("abcdehlnorstwy .!-") + ["<unk>", "ll", "he", "hell", "hello", "wo", "or", "wor", "word", "--", "er", "the", "th", "o w"]
MERGES = [["l", "l"], ["h", "e"], ["he", "ll"], ["hell", "o"], ["w", "o"], ["wo", "r"], ["wor", "d"], ["-", "-"], ["t", "h"], ["th", "e"]]
CLIP = [c + s for c in "abcdehlorstw" for s in ("", "</w>")] + ["he", "lo</w>", "hel", "hello</w>", "rd</w>", "<|unk|>"]
RULES += [bpe(LETTERS, MERGES), bpe(LETTERS, [" ".join(m) for m in MERGES]), bpe(LETTERS, MERGES, unk_token="<unk>"),
          bpe(LETTERS, MERGES, unk_token="<unk>", fuse_unk=True), bpe(LETTERS, MERGES[:1], ignore_merges=True),
          bpe(LETTERS + list(BYTES)[:200], MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
          bpe(LETTERS + list(BYTES)[:200], MERGES, unk_token="<unk>", byte_fallback=True),
          {**bpe(CLIP, ["h e", "l o</w>", "he l", "hel lo</w>", "r d</w>"], end_of_word_suffix="</w>", unk_token="<|unk|>"),
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "decoder": {"type": "BPEDecoder", "suffix": "</w>"}},
          {**bpe(["a", "b", "##a", "##b", "ab", "##ab", "abab"], ["a ##b", "##a ##b", "ab ##ab"], continuing_subword_prefix="##")}]
WORDS = {"[UNK]": 0, "it": 1, "don": 2, "t": 3, "a": 4, "##b": 5, "##do": 6, "wor": 7, "##ds": 8, "s": 9, "word": 10, "##s": 11, "中": 12, "##文": 13, "'": 14}
UNIGRAM = [["<unk>", 0.0], ["a", -1.5], ["b", -2.0], ["ab", -2.5], ["--", -3.0], ["-", -2.0], ["word", -4.0], ["wo", -1.9], ["rd", -2.1], ["s", -1.0],
           ["▁", -1.2], ["▁word", -4.5], ["中文", -3.3], ["ll", -1.0], ["l", -0.5], ["XX", -30.0], ["a", -1.4], ["He", -3.0]]
for model in [{"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 5, "vocab": WORDS},
              {"type": "WordLevel", "unk_token": "[UNK]", "vocab": WORDS},
              {"unk_token": "[UNK]", "vocab": WORDS}]:
    RULES.append({"model": model, "pre_tokenizer": {"type": "Whitespace"}})
RULES.append({"model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {**WORDS, "Ġword": 15, "Ġ": 16}},
              "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}})
for fallback in (False, True):
    RULES.append({"model": {"type": "Unigram", "unk_id": 0, "byte_fallback": fallback, "vocab": UNIGRAM + [[b, -9.0] for b in BYTES]},
                  "pre_tokenizer": metaspace(), "decoder": metaspace()})
MORE = ["hello word", "hello wo rd--", "the  hello!hello", "abab ababab ba", "éllo hello é é\u00ff\u00ffé", "XXab中文中", "stop  now stop now", "Hello ellHello"]

with open(Path(__file__).with_name("cases.jsonl"), "w") as out:
    def write(value):
        out.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")

    write(BASE)
    write(TEXTS + MORE)
    for rule in RULES:
        tokenizer = Tokenizer.from_str(json.dumps({**BASE, **rule}))
        cases = []
        for text in TEXTS + MORE:
            ids = tokenizer.encode(text).ids
            bare = tokenizer.encode(text, add_special_tokens=False).ids
            decoded, skipped = (tokenizer.decode(ids, skip_special_tokens=s) if ids else "" for s in (False, True))
            cases.append([ids, bare if bare != ids else None, decoded if decoded != text else None,
                          skipped if skipped != decoded else None])
        write({"rule": rule, "cases": cases})
