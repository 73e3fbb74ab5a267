#!/usr/bin/env python3
"""Writes docs/models.md, the tables of model families, from the descriptors in src/models and src/formats.

usage: tools/list_models.py [--check]    --check writes nothing and exits 1 when the page is stale

tools/model_names.json lists the names of text models in the registries of vLLM (`architectures`) and llama.cpp
(`general.architecture`). The page says which family of Sluice each name belongs to.
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODELS = ROOT / "src" / "models"
FORMATS = ROOT / "src" / "formats"
NAMES = ROOT / "tools" / "model_names.json"
PAGE = ROOT / "docs" / "models.md"
COLUMNS = 120

FAMILY = re.compile(r"const ModelFamily \w+\{(.*?)\};", re.S)
NAME = re.compile(r'\.name = "([^"]+)"')
ARCHITECTURES = re.compile(r"\.architectures = \{([^}]*)\}")
INCLUDE = re.compile(r'#include "([^"]+)"')
COMMENT = re.compile(r"//[^\n]*")
GGUF_ENTRY = re.compile(r'\{"([^"]+)", (?:&?)(configure_\w+)\}')
GGUF_FUNCTION = re.compile(r"^(?:static |constexpr )?void (configure_\w+)\(.*?^(?:\}|$)", re.S | re.M)
HF_NAME = re.compile(r'"(\w+(?:ForCausalLM|Model|ForMaskedLM|LMHeadModel|ForSequenceClassification))"')
WRAPPERS = re.compile(r"kWrappers = [^{]*\{([^;]*)\}\);", re.S)

GROUPS = {
    "dense": ("Dense decoders", "Transformers whose layers have one MLP for all tokens."),
    "experts": ("Mixtures of experts", "Decoders with routed experts. Some sizes of a family may be dense."),
    "recurrent": ("Recurrent and hybrid models",
                  "Decoders with a recurrent state in all or some of their layers: see [recurrent.md](recurrent.md)."),
    "encoder": ("Encoders",
                "Models that return vectors or scores: see [embeddings.md](embeddings.md). Decoders do so as well, with\n"
                "`--task embed` or as a `...ForSequenceClassification` checkpoint."),
}

OTHERS = """## Names in other engines

The names of text models in vLLM's registry (`architectures` in `config.json`) and in llama.cpp
(`general.architecture` in GGUF files), with the family that runs them. Models of a name without a family are refused.
`tools/model_names.json` holds the names.
"""
UNSUPPORTED = "not supported"

INTRO = """# Model families

Made by `tools/list_models.py` from the files in `src/models`.

A checkpoint's family follows from `architectures` in its `config.json`. A family that claims `XForCausalLM` also claims
`XModel` and `XForSequenceClassification`, and transformers' names of text decoders, `XTextModel` and
`XTextForSequenceClassification`. For a multimodal checkpoint the text decoder is loaded, see
[checkpoints.md](checkpoints.md#multimodal-checkpoints). The architectures of GGUF files are listed in
[gguf.md](gguf.md#what-is-read). To add a family, see [add-a-model.md](add-a-model.md).

Some models have a family whose name differs from theirs:

| model | family |
| --- | --- |
"""
# Names under which models are known and their families are not. Checked: every family must exist.
ALIASES = {
    "A.X K1": "axk1",
    "Code World Model": "cwm",
    "Command A, Command R7B": "cohere2",
    "Command R": "cohere",
    "DeepSeek-R1, Kimi K2, Moonlight": "deepseek_v3",
    "GLM-4 9B (as first published)": "chatglm",
    "GLM-4 9B (transformers' format), GLM-4-0414": "glm, glm4",
    "GLM-4.5, GLM-4.6": "glm4_moe",
    "GLM-4.7 Flash": "glm4_moe_lite",
    "GLM-5": "glm_moe_dsa",
    "Granite 4": "granitemoehybrid",
    "Grok 1 and 2": "grok",
    "Hunyuan A13B; Hunyuan 3 (Hy3)": "hunyuan_v1_moe; hy_v3",
    "K-EXAONE": "exaone_moe",
    "Ling, Ring and Ming; Ling 2.5, Ring 2.5": "bailing_moe, bailing_moe_v2; bailing_moe_v2_5",
    "Llama Nemotron Super and Ultra": "nemotron_nas",
    "MiMo V2.5 Pro": "mimo_v2_flash",
    "MiniMax-01 (transformers' format)": "minimax",
    "MiniMax-01 and MiniMax-M1 (as first published)": "minimax_text_01",
    "Mistral Large 3; Mistral Small 4": "mistral_large3; mistral4",
    "Mono-InternVL": "internlm2",
    "openPangu Embedded": "pangu_embedded",
    "openPangu Ultra MoE": "pangu_ultra_moe",
    "Param 2": "param2moe",
    "Phi 1 to 2; Phi 3 and 4; Phi-3.5 MoE": "phi; phi3; phimoe",
    "Pythia": "gpt_neox",
    "Qwen 1.5 MoE": "qwen2_moe",
    "Sarvam 30B; Sarvam 105B": "sarvam_moe; sarvam_mla",
    "StarCoder 1, SantaCoder": "gpt_bigcode",
    "Step-3; Step-3.5 Flash": "step3_text; step3p5",
    "Step-Audio-EditX": "step1",
    "Tele-FLM, FLM-2; TeleChat 1 and 2": "teleflm; telechat",
    "Trinity": "afmoe",
    "XLM-RoBERTa, CamemBERT": "roberta",
}


def is_recurrent(path):
    """Whether a file, or a header of this folder that it shares with a recurrent family, includes a recurrent layer."""
    for include in INCLUDE.findall(path.read_text()):
        if include.startswith("nn/recurrent/"):
            return True
        if include.startswith("models/"):
            header = MODELS / pathlib.Path(include).name
            owner = header.with_suffix(".cc")
            texts = [file.read_text() for file in (header, owner) if file.exists()]
            if any("nn/recurrent/" in text for text in texts):
                return True
    return False


def group_of(descriptor, path, code):
    if ".encoder = true" in descriptor:
        return "encoder"
    if is_recurrent(path):
        return "recurrent"
    return "experts" if re.search(r"\bmoe\b|MoeSpec|[eE]xperts", code) else "dense"


def families():
    """(group, name, architectures, file) of every descriptor, by name."""
    found = []
    for path in sorted(MODELS.glob("*.cc")):
        code = COMMENT.sub("", path.read_text())
        descriptors = FAMILY.findall(code)
        if not descriptors:
            sys.exit(f"{path}: no ModelFamily found")
        for descriptor in descriptors:
            names = re.findall(r'"([^"]+)"', ARCHITECTURES.search(descriptor).group(1))
            found.append((group_of(descriptor, path, code), NAME.search(descriptor).group(1), names, path.name))
    return sorted(found, key=lambda family: family[1])


def family_of(architecture, found):
    """The family that claims a value of "architectures", as claims() in src/nn/model.cc decides; None: no family."""
    bare = re.sub("(ForSequenceClassification|ForTextEmbedding|Model)$", "", architecture)
    for _, name, architectures, _ in found:
        if architecture in architectures:
            return name
    for _, name, architectures, _ in found:
        if bare != architecture and f"{bare}ForCausalLM" in architectures:
            return name
    return None


def gguf_families(found):
    """The families of every GGUF architecture: those whose configurations its function in src/formats/gguf makes."""
    families_of = {}
    for path in sorted((FORMATS / "gguf").glob("*.cc")):
        code = COMMENT.sub("", path.read_text())
        bodies = {match.group(1): match.group(0) for match in GGUF_FUNCTION.finditer(code)}
        for name, function in GGUF_ENTRY.findall(code):
            seen, names, waiting = set(), [], [function]
            while waiting:
                body = bodies.get(waiting.pop(), "")
                names += [family_of(hf, found) for hf in HF_NAME.findall(body)]
                calls = set(re.findall(r"\b(configure_\w+)\(", body)) - seen
                seen |= calls
                waiting += sorted(calls)
            if not any(names):
                sys.exit(f"{path}: no family found for the GGUF architecture '{name}'")
            families_of[name] = ", ".join(dict.fromkeys(filter(None, names)))
    return families_of


def pairs(names, family):
    """A table of names and their families, two of each in a row."""
    cells = [f"`{name}` | {family(name) or UNSUPPORTED}" for name in names]
    yield "| name | family | name | family |"
    yield "| --- | --- | --- | --- |"
    half = (len(cells) + 1) // 2
    for i in range(half):
        yield f"| {cells[i]} | {cells[half + i] if half + i < len(cells) else ' | '} |"


def other_engines(found):
    names = json.loads(NAMES.read_text())
    wrappers = re.findall(r'"([^"]+)"', WRAPPERS.search((FORMATS / "text_part.cc").read_text()).group(1))
    gguf = gguf_families(found)

    def vllm_family(name):
        return "that of its text decoder" if name in wrappers else family_of(name, found)

    for title, listed, family in (("vLLM", names["vllm"], vllm_family), ("llama.cpp", names["llama.cpp"], gguf.get)):
        missing = sum(family(name) is None for name in listed)
        yield f"### {title}"
        yield ""
        yield f"{len(listed) - missing} of {len(listed)} names."
        yield ""
        yield from pairs(listed, family)
        yield ""


def rows(name, architectures, file):
    """Table rows of one family: as many as its architectures need."""
    row, cell = f"| {name} | ", ""
    for architecture in architectures:
        item = f"`{architecture}`"
        longer = f"{cell}, {item}" if cell else item
        if cell and len(f"{row}{longer} | `{file}` |") > COLUMNS:
            yield f"{row}{cell} | `{file}` |"
            row, longer = "| | ", item
        cell = longer
    yield f"{row}{cell} | `{file}` |"


def page():
    found = families()
    known = {name for _, name, _, _ in found}
    lines = [INTRO.rstrip("\n")]
    for model, names in ALIASES.items():
        unknown = set(re.split("[,;] ", names)) - known
        if unknown:
            sys.exit(f"{__file__}: '{model}' is said to be of unknown families: {', '.join(sorted(unknown))}")
        lines.append(f"| {model} | {names} |")
    lines.append("")
    for key, (title, text) in GROUPS.items():
        lines += [f"## {title}", "", text, "", "| family | architectures | file |", "| --- | --- | --- |"]
        for group, *family in found:
            if group == key:
                lines += rows(*family)
        lines.append("")
    lines += [OTHERS, *other_engines(found)]
    return "\n".join(lines)


def main():
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted)
        return 0
    if PAGE.exists() and PAGE.read_text() == wanted:
        return 0
    print(f"{PAGE.relative_to(ROOT)} is stale: run tools/list_models.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())
