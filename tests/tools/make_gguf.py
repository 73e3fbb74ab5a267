"""Writes a GGUF file from a Hugging Face folder, as llama.cpp's converter would.

usage: make_gguf.py FOLDER OUT.gguf [--type f32|f16|bf16|q8_0|...] [--no-vocab]

Supports the architectures of the table below; tensor names come from the package gguf. Needs only numpy and gguf. For a
block type, gguf's quantizers convert matrices whose rows are whole blocks; other tensors stay float32.
"""
import argparse
import json
import pathlib
import re
import struct

import gguf
import numpy as np

import gguf_special

ARCHS = {
    **gguf_special.ARCHS,
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2", "Qwen2MoeForCausalLM": "qwen2moe", "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe", "GemmaForCausalLM": "gemma", "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3", "PhiForCausalLM": "phi2", "Phi3ForCausalLM": "phi3", "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "starcoder", "GPTNeoXForCausalLM": "gptneox", "Starcoder2ForCausalLM": "starcoder2",
    "FalconForCausalLM": "falcon", "BloomForCausalLM": "bloom", "MptForCausalLM": "mpt",
    "StableLmForCausalLM": "stablelm", "OlmoForCausalLM": "olmo", "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo2", "OlmoeForCausalLM": "olmoe", "CohereForCausalLM": "command-r",
    "Cohere2ForCausalLM": "cohere2", "GraniteForCausalLM": "granite", "GraniteMoeForCausalLM": "granitemoe",
    "Glm4ForCausalLM": "glm4", "Exaone4ForCausalLM": "exaone4", "SmolLM3ForCausalLM": "smollm3",
    "ArceeForCausalLM": "arcee", "NemotronForCausalLM": "nemotron", "SeedOssForCausalLM": "seed_oss",
    "Dots1ForCausalLM": "dots1", "Glm4MoeForCausalLM": "glm4moe", "Ernie4_5ForCausalLM": "ernie4_5",
    "HunYuanDenseV1ForCausalLM": "hunyuan-dense", "HunYuanMoEV1ForCausalLM": "hunyuan-moe",
    "GlmForCausalLM": "chatglm", "Ernie4_5_MoeForCausalLM": "ernie4_5-moe", "PhimoeForCausalLM": "phimoe",
    "Jais2ForCausalLM": "jais2", "ApertusForCausalLM": "apertus", "MiniCPM3ForCausalLM": "minicpm3",
    "ExaoneMoeForCausalLM": "exaone-moe", "AfmoeForCausalLM": "afmoe", "Llama4ForCausalLM": "llama4",
    "Gemma4ForCausalLM": "gemma4", "OrionForCausalLM": "orion", "MiniCPMForCausalLM": "minicpm",
    "DeepseekForCausalLM": "deepseek", "ExaoneForCausalLM": "exaone", "PanguEmbeddedForCausalLM": "pangu-embedded",
    "JAISLMHeadModel": "jais", "BailingMoeV2ForCausalLM": "bailingmoe2", "BailingMoeForCausalLM": "bailingmoe",
    "QWenLMHeadModel": "qwen", "HYV3ForCausalLM": "hy_v3", "MellumForCausalLM": "mellum",
    "Cohere2MoeForCausalLM": "cohere2moe",
}
PAIRED = {"llama", "olmo", "granite", "granitemoe", "smollm3", "arcee", "mistral3", "granitehybrid", "minicpm",
          "deepseek"}
RMS = {"mamba", "mamba2", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe", "qwen"}  # RMS norms whose epsilon has another key
PLUS_ONE = {"gemma", "gemma2", "gemma3", "nemotron"}


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    out = {}
    for name, row in header.items():
        if name == "__metadata__":
            continue
        begin, end = row["data_offsets"]
        raw = data[8 + size + begin:8 + size + end]
        if row["dtype"] == "BF16":
            values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.frombuffer(raw, {"F32": np.float32, "F16": np.float16}[row["dtype"]]).astype(np.float32)
        out[name] = values.reshape(row["shape"])
    return out


class Config(dict):
    def first(self, *keys, default=None):
        for key in keys:
            if self.get(key) is not None:
                return self[key]
        return default


def pair_rows(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def ungroup(w, heads, kv_heads):
    """Reorders rows from kv-head groups (queries, key, value) to all queries, all keys, all values."""
    dim = w.shape[0] // (heads + 2 * kv_heads)
    g = w.reshape(kv_heads, heads // kv_heads + 2, dim, *w.shape[1:])
    rest = w.shape[1:]
    return np.concatenate([g[:, :-2].reshape(-1, *rest), g[:, -2].reshape(-1, *rest), g[:, -1].reshape(-1, *rest)])


class Sizes:
    def __init__(self, c):
        self.hidden = c.first("hidden_size", "n_embd", "n_embed", "d_model")
        self.layers = c.first("num_hidden_layers", "n_layer", "n_layers") or len(
            c.first("layers_block_type", "hybrid_override_pattern"))
        self.heads = c.first("num_attention_heads", "n_head", "n_heads", default=1)
        self.kv = c.first("num_key_value_heads", "num_kv_heads", default=self.heads)
        if c.get("multi_query") and not c.get("new_decoder_architecture"):
            self.kv = 1
        self.dim = c.first("head_dim", default=self.hidden // self.heads)
        self.ffn = gguf_special.lfm2_width(c) or c.first("intermediate_size", "n_inner", "ffn_hidden_size",
                                                         default=4 * self.hidden)
        self.context = c.first("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
                               default=2048)


def convert(arch, tensors, c, s):
    """Yields (name, values) with GGUF's names and in its order."""
    known = gguf_special.LATER.get(arch, arch)
    names = gguf.get_tensor_name_map(next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == known), s.layers)
    experts, norms, streams = {}, {}, {}
    everything = []
    for name, w in sorted(tensors.items()):
        special = gguf_special.convert(arch, name, w, c, s)
        everything += [(name, w)] if special is None else special
    for name, w in everything:
        if name.startswith("blk."):
            yield name, w
            continue
        if name.endswith((".attn.bias", ".masked_bias", ".rotary_emb.inv_freq")) or \
                (name == "lm_head.weight" and c.get("tie_word_embeddings")):
            continue
        if arch == "bloom":
            name = name.removeprefix("transformer.")
        m = re.match(r"model\.layers\.(\d+)\.(?:mlp|block_sparse_moe|feed_forward)\.experts\.(\d+)\.(\w+)\.weight", name)
        if m:
            experts.setdefault((int(m[1]), m[3]), {})[int(m[2])] = w
            continue
        m = re.match(r"model\.altup_(unembed_)?projections\.(\d+)\.weight", name)
        if m:
            streams.setdefault("altup_unembd_proj" if m[1] else "altup_proj", {})[int(m[2])] = w
            continue
        m = re.match(r"model\.layers\.(\d+)\.self_attn\.(q|k)_layernorm\.norms\.(\d+)\.weight", name)
        if m:
            norms.setdefault((int(m[1]), m[2]), {})[int(m[3])] = w
            continue
        if arch in PAIRED and ".q_proj." in name:
            w = pair_rows(w, s.heads)
        if arch in PAIRED and ".k_proj." in name:
            w = pair_rows(w, s.kv)
        if arch in PLUS_ONE and name.endswith("norm.weight"):
            w = w + np.float32(1)
        if arch in ("gptneox", "bloom", "falcon") and "query_key_value" in name:
            w = ungroup(w, s.heads, s.kv)
        if arch in ("gpt2", "jais") and w.ndim == 2 and name.endswith(
                ("c_attn.weight", "c_proj.weight", "c_fc.weight", "c_fc2.weight")):
            w = w.T
        if name.endswith("relative_pe.slopes"):
            continue
        if arch == "jais" and name == "transformer.wte.weight":  # the goldens' heads are tied
            width = c.get("width_scale") or c["mup_width_scale"] * c["mup_output_alpha"]
            yield "output.weight", w * np.float32(width)
            w = w * np.float32(c.first("embeddings_scale", "mup_embeddings_scale"))
        if name.endswith("block_sparse_moe.input_linear.weight"):
            i = int(name.split(".")[2])
            yield f"blk.{i}.ffn_gate_exps.weight", w[:, :w.shape[1] // 2]
            yield f"blk.{i}.ffn_up_exps.weight", w[:, w.shape[1] // 2:]
            continue
        if name.endswith("shared_expert_gate.weight"):
            w = w.reshape(-1)
        if name.endswith("mlp.gate.expert_bias"):
            name = name.replace("expert_bias", "e_score_correction_bias")
        if name.endswith("e_score_correction_bias"):
            name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if name.endswith("e_score_correction.bias"):
            yield f"blk.{name.split('.')[2]}.exp_probs_b.bias", w
            continue
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, (arch, name)
        yield new, w
    kinds = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
    for (layer, kind), parts in sorted(experts.items()):
        yield f"blk.{layer}.ffn_{kinds[kind]}_exps.weight", np.stack([parts[i] for i in range(len(parts))])
    for kind, parts in streams.items():
        yield f"{kind}.weight", np.stack([parts[i] for i in range(len(parts))])
    for (layer, kind), parts in sorted(norms.items()):
        yield f"blk.{layer}.attn_{kind}_norm.weight", np.stack([parts[i] for i in range(len(parts))])


def rope(w, arch, c, s):
    params = c.first("rope_parameters", "rope_scaling", default={}) or {}
    if "full_attention" in params:
        params = params["full_attention"]
    w.add_rope_freq_base(float(c.first("rope_theta", "rotary_emb_base") or params.get("rope_theta") or 10000.0))
    partial = c.first("partial_rotary_factor", "rotary_pct", default=params.get("partial_rotary_factor", 1.0))
    w.add_rope_dimension_count(int(s.dim * partial))
    kind = params.get("rope_type", "default")
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(params["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(params["factor"])
        w.add_rope_scaling_orig_ctx_len(params["original_max_position_embeddings"])
    elif kind == "llama3":
        inverse = 1.0 / params.get("rope_theta", c.get("rope_theta")) ** (np.arange(0, s.dim, 2) / s.dim)
        wave, original = 2 * np.pi / inverse, params["original_max_position_embeddings"]
        low, high = original / params["low_freq_factor"], original / params["high_freq_factor"]
        smooth = (original / wave - params["low_freq_factor"]) / (params["high_freq_factor"] - params["low_freq_factor"])
        factors = np.where(wave < high, 1.0, np.where(wave > low, params["factor"],
                                                      1 / ((1 - smooth) / params["factor"] + smooth)))
        w.add_tensor("rope_freqs.weight", factors.astype(np.float32))
    elif kind == "longrope":
        original = c.get("original_max_position_embeddings") or params["original_max_position_embeddings"]
        ratio = s.context / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(params.get("attention_factor") or (
            1.0 if ratio <= 1 else float(np.sqrt(1 + np.log(ratio) / np.log(original)))))
        w.add_tensor("rope_factors_long.weight", np.float32(params["long_factor"]))
        w.add_tensor("rope_factors_short.weight", np.float32(params["short_factor"]))
    elif kind not in ("default", "proportional"):
        raise SystemExit(f"rope type {kind} cannot be converted")


def metadata(w, arch, c, s):
    w.add_context_length(s.context)
    w.add_embedding_length(s.hidden)
    w.add_block_count(s.layers)
    w.add_feed_forward_length(s.ffn)
    w.add_head_count(s.heads)
    w.add_vocab_size(c["vocab_size"])
    if arch not in ("gpt2", "bloom", "gptneox", "jais"):
        w.add_head_count_kv(s.kv)
    if c.get("head_dim") and arch not in ("mamba2", "gemma4", "minicpm3", "kimi-linear"):
        w.add_key_length(s.dim)
        w.add_value_length(s.dim)
    rms = c.get("rms_norm_eps") if arch != "orion" else None
    if rms is not None:
        w.add_layer_norm_rms_eps(rms)
    else:
        eps = c.first("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps", "rms_norm_eps", default=1e-5)
        (w.add_layer_norm_rms_eps if arch in RMS else w.add_layer_norm_eps)(eps)
    if arch not in ("gpt2", "starcoder", "bloom", "mpt", "mamba", "mamba2", "jamba", "bert", "jais"):
        rope(w, arch, c, s)
    if c.get("sliding_window") and c.get("use_sliding_window", True) and arch in (
            "gemma2", "gemma3", "gemma4", "cohere2", "cohere2moe", "mellum", "olmo2", "exaone4", "exaone-moe", "afmoe",
            "phi3", "phimoe"):
        w.add_sliding_window(c["sliding_window"])
        if arch in ("olmo2", "exaone4", "exaone-moe", "gemma4") and c.get("layer_types"):
            w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    for key, add in (("attn_logit_softcapping", w.add_attn_logit_softcapping),
                     ("final_logit_softcapping", w.add_final_logit_softcapping),
                     ("logit_scale", w.add_logit_scale), ("clip_qkv", w.add_clamp_kqv),
                     ("use_parallel_residual", w.add_parallel_residual)):
        if c.get(key) is not None:
            add(c[key])
    if arch.startswith("granite"):
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_attention_scale(c["attention_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if arch == "jais":
        w.add_max_alibi_bias(8.0)
    if arch == "mpt":
        w.add_max_alibi_bias(c["attn_config"]["alibi_bias_max"])
        if c["attn_config"].get("clip_qkv"):
            w.add_clamp_kqv(c["attn_config"]["clip_qkv"])
    experts = c.first("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    if experts and arch != "nemotron_h":
        w.add_expert_count(experts)
        w.add_expert_used_count(c.first("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts"))
        if c.get("moe_intermediate_size"):
            w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        if c.get("shared_expert_intermediate_size"):
            w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])
    if arch == "bailingmoe2":
        w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
    if arch in ("dots1", "glm4moe", "exaone-moe", "afmoe", "bailingmoe2"):
        kinds = c.get("mlp_layer_types")
        w.add_leading_dense_block_count(kinds.count("dense") if kinds else
                                        c.first("first_k_dense_replace", "num_dense_layers"))
        w.add_expert_shared_count(c.first("n_shared_experts", "num_shared_experts"))
        w.add_expert_weights_scale(c.first("routed_scaling_factor", "route_scale"))
        w.add_expert_weights_norm(c.get("norm_topk_prob", True))
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_group_count(c.first("n_group", default=1))
        w.add_expert_group_used_count(c.first("topk_group", default=1))
    gguf_special.metadata(w, arch, c, s)
    if arch == "hunyuan-moe":
        w.add_expert_feed_forward_length(s.ffn)
        w.add_expert_shared_feed_forward_length(s.ffn)


def vocabulary(w, folder, c):
    tok = json.loads((folder / "tokenizer.json").read_text())
    size = c["vocab_size"]
    texts, types = [f"[PAD{i}]" for i in range(size)], [gguf.TokenType.UNUSED] * size
    for text, i in tok["model"]["vocab"].items():
        texts[i], types[i] = text, gguf.TokenType.NORMAL
    for token in tok["added_tokens"]:
        texts[token["id"]] = token["content"]
        types[token["id"]] = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen2" if "(?i:'s|'t" in json.dumps(tok["pre_tokenizer"]) else "gpt-2")
    w.add_token_list(texts)
    w.add_token_types(types)
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tok["model"]["merges"]])
    if c.get("bos_token_id") is not None:
        w.add_bos_token_id(c["bos_token_id"])
    eos = c.get("eos_token_id")
    if eos is not None:
        w.add_eos_token_id(eos[0] if isinstance(eos, list) else eos)
    template = folder / "chat_template.jinja"
    if template.exists():
        w.add_chat_template(template.read_text())


def write(folder, out, kind="f32", vocab=True):
    folder = pathlib.Path(folder)
    c = Config(json.loads((folder / "config.json").read_text()))
    arch = gguf_special.architecture(ARCHS[c["architectures"][0]], c)
    if arch == "llama" and c.get("hidden_act", "silu") != "silu":
        raise SystemExit(f"hidden_act {c['hidden_act']} cannot be stored in GGUF")
    s = Sizes(c)
    w = gguf.GGUFWriter(str(out), arch)
    metadata(w, arch, c, s)
    if vocab:
        vocabulary(w, folder, c)
    else:
        w.add_tokenizer_model("no_vocab")
    qtype = gguf.GGMLQuantizationType[kind.upper()]
    block = gguf.GGML_QUANT_SIZES[qtype][0]
    tensors = list(convert(arch, read_safetensors(folder / "model.safetensors"), c, s))
    for part, of_layers in c.get("xielu", {}).items():
        w.add_array(f"xielu.{part}", [of_layers[i] for i in range(s.layers)])
    for name, values in tensors:
        plain = values.ndim < 2 or values.shape[-1] % block or name.endswith((
            "_norm.weight", "ffn_gate_inp.weight", "position_embd.weight"))
        values = np.ascontiguousarray(values, np.float32)
        if plain or kind == "f32":
            w.add_tensor(name, values)
        else:
            w.add_tensor(name, gguf.quantize(values, qtype), raw_dtype=qtype)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--type", default="f32")
    parser.add_argument("--no-vocab", action="store_true")
    a = parser.parse_args()
    write(a.folder, a.out, a.type, not a.no_vocab)
