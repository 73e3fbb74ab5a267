"""Makes the goldens beside this file: small vocabularies of SentencePiece and tiktoken, and what their own libraries
make of nasty texts. Needs `pip install sentencepiece==0.2.* protobuf tiktoken regex`; TRAIN_TEXT is any text of a few hundred KB."""

import base64
import json
import pathlib
import random
import sys
import unicodedata

import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2
from tiktoken._educational import bpe_train

HERE = pathlib.Path(__file__).resolve().parent
RANGES = [(32, 126), (0, 31), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF), (0x900, 0x97F), (0xE00, 0xE7F),
          (0x1100, 0x11FF), (0x2000, 0x206F), (0x2150, 0x218F), (0x2460, 0x24FF), (0x2581, 0x2581), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFF00, 0xFFEF), (0x1D400, 0x1D7FF),
          (0x1F300, 0x1FAFF)]
PIECES = ["a", "aa", "aaa", " ", "  ", "=", "-", "the", "\u2581", "0", "ing", "foo bar", "<sep>", "\U0001F600", "e\u0301", "\ufb01", "\t", "\n"]


def texts(words, seed, count):
    r = random.Random(seed)
    noise = lambda: "".join(chr(r.randint(*r.choice(RANGES))) for _ in range(r.randint(1, 40)))
    prose = lambda: "".join(r.choice(words) + r.choice([" ", " ", "  ", "\n", "\t", "\u3000"]) for _ in range(r.randint(1, 30)))
    runs = lambda: r.choice(PIECES) * r.randint(1, 30) + r.choice(words)
    padded = lambda: " " * r.randint(0, 5) + r.choice(words) + " " * r.randint(0, 5)
    return ["", " ", "  \n "] + [r.choice([noise, prose, runs, padded])() for _ in range(count - 3)]


def write_vectors(folder, rows):
    with open(folder / "vectors.jsonl", "w") as out:
        for text, ids, decoded in rows:
            row = {"text": text, "ids": ids} | ({"decoded": decoded} if decoded != text else {})
            out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


def sentencepiece_golden(name, train_text, words, seed, **options):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        input=train_text, model_prefix=str(folder / "tokenizer"), hard_vocab_limit=False, minloglevel=2, num_threads=1, **options)
    (folder / "tokenizer.vocab").unlink()
    stored = sentencepiece_model_pb2.ModelProto.FromString((folder / "tokenizer.model").read_bytes())
    stored.trainer_spec.ClearField("input")  # names of files on the machine that made it
    stored.trainer_spec.ClearField("model_prefix")
    (folder / "tokenizer.model").write_bytes(stored.SerializeToString())
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    shown = lambda ids: model.decode([i for i in ids if not model.is_unknown(i)])  # Sluice shows no " ?? " for them
    write_vectors(folder, [(t, model.encode(t), shown(model.encode(t))) for t in texts(words, seed, 150)])


def tiktoken_golden(name, file, pattern, nfc, ranks, words, seed):
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    with open(folder / file, "w") as out:
        for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
            out.write(f"{base64.b64encode(token).decode()} {rank}\n")
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    normalized = [(t, unicodedata.normalize("NFC", t) if nfc else t) for t in texts(words, seed, 150)]
    write_vectors(folder, [(t, encoding.encode_ordinary(n), n) for t, n in normalized])


def main():
    train_text = sys.argv[1]
    words = [w for w in open(train_text).read().split() if "<" not in w]
    sentencepiece_golden("sentencepiece-bpe", train_text, words, 1, model_type="bpe", vocab_size=800, byte_fallback=True,
                         normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True)
    sentencepiece_golden("sentencepiece-bpe-user-defined", train_text, words, 2, model_type="bpe", vocab_size=700,
                         normalization_rule_name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False,
                         byte_fallback=True, user_defined_symbols=["<sep>", "\u2581\u2581", "aa", "the"], control_symbols=["<ctl>"])
    sentencepiece_golden("sentencepiece-unigram", train_text, words, 3, model_type="unigram", vocab_size=700,
                         character_coverage=0.98, normalization_rule_name="nmt_nfkc", user_defined_symbols=["foo bar", "ing"])
    letters = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    contractions = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|"
    ranks = bpe_train(data=open(train_text).read()[:60000], vocab_size=700, pat_str=contractions + letters)
    tiktoken_golden("tiktoken-llama3", "tokenizer.model", contractions + letters, False, ranks, words, 4)
    tiktoken_golden("tiktoken-qwen", "qwen.tiktoken", contractions + letters.replace("{1,3}", ""), True, ranks, words, 5)
    han = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
    ends = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    kimi = (r"[\p{Han}]+|" + rf"[^\r\n\p{{L}}\p{{N}}]?{han[0]}*{han[1]}+{ends}|[^\r\n\p{{L}}\p{{N}}]?{han[0]}+{han[1]}*{ends}|"
            + letters.split("|", 1)[1])
    tiktoken_golden("tiktoken-kimi", "tiktoken.model", kimi, False, ranks, words, 6)


if __name__ == "__main__":
    main()
