"""Converts recurrent layers, latent attention, experts and encoders as llama.cpp does; used by make_gguf.py."""
import re
import statistics

import gguf
import numpy as np

ARCHS = {
    "GptOssForCausalLM": "gpt-oss", "DeepseekV2ForCausalLM": "deepseek2", "DeepseekV3ForCausalLM": "deepseek2",
    "MiniMaxM2ForCausalLM": "minimax-m2", "Ministral3ForCausalLM": "mistral3", "MambaForCausalLM": "mamba",
    "FalconMambaForCausalLM": "mamba", "Mamba2ForCausalLM": "mamba2", "JambaForCausalLM": "jamba",
    "FalconH1ForCausalLM": "falcon-h1", "GraniteMoeHybridForCausalLM": "granitehybrid",
    "NemotronHForCausalLM": "nemotron_h", "Lfm2ForCausalLM": "lfm2", "Lfm2MoeForCausalLM": "lfm2moe",
    "Qwen3NextForCausalLM": "qwen3next", "Gemma3nForCausalLM": "gemma3n", "Qwen3_5ForCausalLM": "qwen35",
    "Qwen3_5MoeForCausalLM": "qwen35moe", "DbrxForCausalLM": "dbrx", "BitNetForCausalLM": "bitnet",
    "Gemma3TextModel": "gemma-embedding", "ModernBertModel": "modern-bert",
    "ModernBertForSequenceClassification": "modern-bert", "EuroBertModel": "eurobert", "BertModel": "bert",
    "BertForSequenceClassification": "bert", "XLMRobertaModel": "bert", "RobertaModel": "bert",
    "RobertaForSequenceClassification": "bert", "XLMRobertaForSequenceClassification": "bert",
    "DeciLMForCausalLM": "deci", "MiMoV2FlashForCausalLM": "mimo2", "DeepseekV32ForCausalLM": "deepseek32", "GlmMoeDsaForCausalLM": "glm-dsa",
    "JinaEmbeddingsV3Model": "jina-bert-v3", "NomicBertModel": "nomic-bert", "KimiLinearForCausalLM": "kimi-linear",
}
# Architectures that are newer than the package gguf, and others whose tensors have the same names.
LATER = {"hy_v3": "exaone-moe", "mellum": "exaone-moe", "cohere2moe": "deepseek2", "deepseek32": "deepseek2",
         "glm-dsa": "deepseek2"}
ENCODERS = {"gemma-embedding", "modern-bert", "eurobert", "bert", "jina-bert-v3", "nomic-bert"}
RECURRENT = {"mamba", "mamba2", "jamba", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"}


def architecture(arch, c):
    """GGUF has two names for some architectures; returns the one with experts if the model has them."""
    kinds = c.get("layers_block_type") or c.get("hybrid_override_pattern") or []
    return "nemotron_h_moe" if arch == "nemotron_h" and ("moe" in kinds or "E" in kinds) else arch



def attends(arch, c, s):
    """Returns which layers have attention."""
    kinds = c.first("layer_types", "layers_block_type")
    if arch == "jamba":
        return [i % c["attn_layer_period"] == c["attn_layer_offset"] for i in range(s.layers)]
    if arch == "kimi-linear":
        own = c.get("linear_attn_config") or {}
        full = own.get("full_attn_layers") or [i + 1 for i, kind in enumerate(kinds) if kind == "full_attention"]
        return [i + 1 in full for i in range(s.layers)]
    if arch.startswith("nemotron_h") and not kinds:
        return [kind == "*" for kind in c["hybrid_override_pattern"]]
    if arch in ("lfm2", "lfm2moe") and not kinds:
        return [i in c["full_attn_idxs"] for i in range(s.layers)]
    if arch in ("granitehybrid", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe"):
        return ["attention" in kind and kind != "linear_attention" for kind in kinds]
    return None


def lfm2_width(c):
    """Returns the width of LFM2's MLPs: narrower than the configured size, unless auto-adjustment is off."""
    if c["architectures"][0] != "Lfm2ForCausalLM" or not c.get("block_auto_adjust_ff_dim", True):
        return None
    width = int(2 * c.first("block_ff_dim", "intermediate_size") / 3)
    if c.get("block_ffn_dim_multiplier", 1.0) is not None:
        width = int(c.get("block_ffn_dim_multiplier", 1.0) * width)
        multiple = c.get("block_multiple_of", 256)
        width = (width + multiple - 1) // multiple * multiple
    return width


def mamba2_sizes(c):
    """Writes heads, groups and state of Mamba 2's layers."""
    return (c.first("mamba_n_heads", "mamba_num_heads", "num_heads"), c.first("mamba_n_groups", "n_groups"),
            c.first("mamba_d_state", "ssm_state_size", "state_size"))


def falcon_h1(name, w, c):
    """Folds multipliers into the weights."""
    mlp, into = c["mlp_multipliers"], c["attention_in_multiplier"]
    factors = {"down_proj": mlp[1], "gate_proj": mlp[0], "k_proj": c["key_multiplier"] * into, "q_proj": into,
               "v_proj": into, "o_proj": c["attention_out_multiplier"], "out_proj": c["ssm_out_multiplier"],
               "lm_head": c["lm_head_multiplier"], "embed_tokens": c["embedding_multiplier"]}
    part = name.split(".")[-2]
    if part == "in_proj":
        inner, (heads, groups, state) = c["mamba_d_ssm"], mamba2_sizes(c)
        sizes = [inner, inner, groups * state, groups * state, heads]
        scales = np.repeat(np.float32(c["ssm_multipliers"]), sizes) * np.float32(c["ssm_in_multiplier"])
        return w * scales[:, None]
    return w * np.float32(factors.get(part, 1.0))


NEMOTRON_EXPERTS = {"gate.weight": "ffn_gate_inp.weight", "gate.e_score_correction_bias": "exp_probs_b.bias",
                    "shared_experts.up_proj.weight": "ffn_up_shexp.weight",
                    "shared_experts.down_proj.weight": "ffn_down_shexp.weight",
                    "fc1_latent_proj.weight": "ffn_latent_down.weight", "fc2_latent_proj.weight": "ffn_latent_up.weight"}


def recurrent(arch, name, w, c, s):
    if arch == "falcon-h1":
        w = falcon_h1(name, w, c)
    if name.endswith(".dt_bias"):
        name = name.removesuffix("dt_bias") + "dt_proj.bias"
    if name.endswith(".conv1d.weight"):
        w = w.reshape(w.shape[0], w.shape[-1])
    if name.endswith(".A_log"):
        w = -np.exp(w)
    if arch == "nemotron_h_moe" and name.startswith("backbone.layers.") and ".mixer." in name:
        layer, part = name.split(".")[2], name.split(".mixer.")[1]
        if part in NEMOTRON_EXPERTS:
            return [(f"blk.{layer}.{NEMOTRON_EXPERTS[part]}", w)]
        if part.startswith("experts."):  # treated like experts, which are merged into one tensor
            return [(f"model.layers.{layer}.mlp.{part}", w)]
    if name.endswith((".A_log", ".D")) and w.ndim == 1 and c["architectures"][0] not in (
            "MambaForCausalLM", "FalconMambaForCausalLM", "JambaForCausalLM"):
        w = w[:, None]
    if re.search(r"\.(mamba|mixer)\.norm\.weight$", name):
        w = w.reshape(mamba2_sizes(c)[1], -1)
    return [(name, w)]


def granite(name, w, c):
    layer = name.split(".")[2]
    dense = not c.get("num_local_experts")
    if name.endswith("shared_mlp.input_linear.weight"):
        half = w.shape[0] // 2
        kind = "" if dense else "_shexp"
        return [(f"blk.{layer}.ffn_gate{kind}.weight", w[:half]), (f"blk.{layer}.ffn_up{kind}.weight", w[half:])]
    if dense and name.endswith("shared_mlp.output_linear.weight"):
        return [(f"blk.{layer}.ffn_down.weight", w)]
    return None


def gpt_oss(name, w):
    m = re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj(_bias)?$", name)
    if not m:
        return [(name + ".weight", w)] if name.endswith(".sinks") else None
    kind = "bias" if m[3] else "weight"
    if not m[3]:
        w = w.swapaxes(1, 2)
    if m[2] == "down":
        return [(f"blk.{m[1]}.ffn_down_exps.{kind}", w)]
    return [(f"blk.{m[1]}.ffn_gate_exps.{kind}", w[:, 0::2]), (f"blk.{m[1]}.ffn_up_exps.{kind}", w[:, 1::2])]


def latent(name, w, c, s):
    m = re.match(r"model\.layers\.(\d+)\.self_attn\.kv_b_proj\.weight", name)
    if not m:
        return None
    nope, value = c["qk_nope_head_dim"], c["v_head_dim"]
    both = w.reshape(s.heads, nope + value, -1)
    return [(f"blk.{m[1]}.attn_k_b.weight", both[:, :nope].swapaxes(1, 2)),
            (f"blk.{m[1]}.attn_v_b.weight", both[:, nope:])]


def kimi(name, w, c, s):
    if name.endswith("_conv1d.weight"):
        return [(name, w.reshape(1, w.shape[0], 1, w.shape[-1]))]
    if name.endswith(".A_log"):
        return [(name, -np.exp(w))]
    if name.endswith(".dt_bias"):
        return [(name.removesuffix("dt_bias") + "dt_proj.bias", w)]
    return latent(name, w, c, s)


def value_heads_in_turn(name, w, c):
    """Reorders value heads from grouped by key head to alternating key heads 0, 1, ..., 0, 1, ..."""
    groups, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    keys, dim = 2 * groups * c["linear_key_head_dim"], c["linear_value_head_dim"]
    if name.endswith(".out_proj.weight"):
        return value_heads_in_turn("in_proj_z", w.T, c).T

    def turned(rows, size):
        by_head = rows.reshape(groups, heads // groups, size, *rows.shape[1:])
        return by_head.swapaxes(0, 1).reshape(rows.shape)

    if name.endswith((".in_proj_qkv.weight", ".conv1d.weight")):
        return np.concatenate([w[:keys], turned(w[keys:], dim)])
    if name.endswith((".in_proj_a.weight", ".in_proj_b.weight", ".A_log", ".dt_bias")):
        return turned(w, 1)
    return turned(w, dim)


def qwen3_next(name, w, c):
    if c["architectures"][0] != "Qwen3NextForCausalLM" and ".linear_attn." in name and not name.endswith(".norm.weight"):
        w = value_heads_in_turn(name, w, c)
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("norm.weight") and ".linear_attn." not in name:
        return [(name, w + np.float32(1))]
    if name.endswith(".conv1d.weight"):
        return [(name, w.reshape(w.shape[0], w.shape[-1]))]
    if name.endswith(".A_log"):
        return [(name, -np.exp(w))]
    if name.endswith(".dt_bias"):
        return [(f"blk.{layer}.ssm_dt.bias", w)]
    if name.endswith(".in_proj_qkvz.weight"):
        keys, values = c["linear_key_head_dim"], c["linear_value_head_dim"]
        groups = c["linear_num_key_heads"]
        mine = c["linear_num_value_heads"] // groups * values
        q, k, v, z = np.split(w.reshape(groups, -1, w.shape[1]), [keys, 2 * keys, 2 * keys + mine], axis=1)
        rows = [part.reshape(-1, w.shape[1]) for part in (q, k, v, z)]
        return [(f"blk.{layer}.attn_qkv.weight", np.concatenate(rows[:3])), (f"blk.{layer}.attn_gate.weight", rows[3])]
    return [(name, w)]


def gemma3n(name, w):
    if name.endswith("correct_output_scale"):
        return [(f"blk.{name.split('.')[2]}.altup_correct_scale.weight", w)]
    return None


def gemma4(name, w):
    layer = name.split(".")[2] if ".layers." in name else ""
    for ending, into in ((".layer_scalar", "layer_output_scale.weight"), (".router.scale", "ffn_gate_inp.scale"),
                         (".router.per_expert_scale", "ffn_down_exps.scale"),
                         (".experts.gate_up_proj", "ffn_gate_up_exps.weight"),
                         (".experts.down_proj", "ffn_down_exps.weight")):
        if name.endswith(ending):
            return [(f"blk.{layer}.{into}", w)]
    return None


def llama4(name, w):
    if name.endswith(".experts.gate_up_proj"):
        gate, up = np.split(w.swapaxes(1, 2), 2, axis=1)
        layer = name.split(".")[2]
        return [(f"blk.{layer}.ffn_gate_exps.weight", gate), (f"blk.{layer}.ffn_up_exps.weight", up)]
    if name.endswith(".experts.down_proj"):
        return [(f"blk.{name.split('.')[2]}.ffn_down_exps.weight", w.swapaxes(1, 2))]
    return None


XIELU = ("alpha_n", "alpha_p", "beta", "eps")


def apertus(name, w, c):
    """Moves the activations' parameters into the metadata."""
    part = name.split(".")[-1]
    if part not in XIELU:
        return None
    c.setdefault("xielu", {}).setdefault(part, {})[int(name.split(".")[2])] = float(w.reshape(-1)[0])
    return []


def dbrx(name, w, c):
    if name.endswith((".w1", ".v1", ".w2")):
        part = {"w1": "gate", "v1": "up", "w2": "down"}[name[-2:]]
        w = w.reshape(c["ffn_config"]["moe_num_experts"], -1, w.shape[-1])
        return [(f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", w.swapaxes(1, 2) if part == "down" else w)]
    return None


def encoder(arch, name, w, c):
    """Renames encoder tensors: bodies lose their prefix, heads become "cls". RoBERTa's positions then begin at 0."""
    if name.endswith("position_ids"):
        return []
    for prefix in ("bert.", "roberta.", "model."):
        name = name.removeprefix(prefix)
    if arch == "gemma-embedding" and name.endswith("norm.weight"):
        w = w + np.float32(1)
    if name == "embeddings.position_embeddings.weight" and "oberta" in c["architectures"][0]:
        w = w[c["pad_token_id"] + 1:]
    if name == "embeddings.token_type_embeddings.weight" and w.shape[0] == 1:
        w = w.reshape(-1)
    if "pooler.dense" in name and "Classification" not in c["architectures"][0]:
        return []
    dense = ("pooler.dense.", "classifier.dense.", "head.dense.")
    if any(name.startswith(d) for d in dense):
        return [("cls." + name.rsplit(".", 1)[1], w)]
    for head, into in (("head.norm.", "cls.norm."), ("classifier.out_proj.", "cls.output."),
                       ("classifier.", "cls.output.")):
        if name.startswith(head):
            return [(into + name.rsplit(".", 1)[1], w)]
    if arch == "jina-bert-v3":
        for old, new in (("mixer.Wqkv", "attn_qkv"), ("mixer.out_proj", "attn_output"), ("norm1", "attn_output_norm"),
                         ("mlp.fc1", "ffn_up"), ("mlp.fc2", "ffn_down"), ("norm2", "layer_output_norm")):
            m = re.match(rf"encoder\.layers\.(\d+)\.{re.escape(old)}\.(\w+)$", name)
            if m:
                return [(f"blk.{m[1]}.{new}.{m[2]}", w)]
    if arch in ("gemma-embedding", "eurobert"):
        name = "model." + name
    return [(name, w)]


def moe_statics(name, w):
    if not name.endswith("e_score_correction_bias"):
        return None
    return [(f"blk.{name.split('.')[2]}.exp_probs_b.bias", w.reshape(-1))]


def paired(rows, head_dim):
    return rows.reshape(-1, 2, head_dim // 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def deci_layers(c, s):
    """The heads, the kv heads and the width of each layer; 0 where it lacks the part."""
    heads, kv, widths = [], [], []
    for block in c["block_configs"]:
        group = block["attention"].get("n_heads_in_group")
        heads.append(s.heads if group else 0)
        kv.append(s.heads // group if group else 0)
        ffn = block["ffn"]
        width = ffn.get("intermediate_size") or -(-int(2 * (ffn.get("ffn_mult") or 0) * s.hidden / 3) // 256) * 256
        widths.append(0 if ffn.get("no_op") else width)
    return heads, kv, widths


def mimo2_kv(c, s):
    swa = c.first("swa_num_key_value_heads", default=2 * s.kv)
    return [swa if kind == "sliding_attention" else s.kv for kind in c["layer_types"]]


def bailing(name, w, c, s):
    """Splits the fused projection and pairs the rows of queries and keys."""
    layer = name.split(".")[2] if ".layers." in name else ""
    if name.endswith("attention.dense.weight"):
        return [(f"blk.{layer}.attn_output.weight", w)]
    if not name.endswith("query_key_value.weight"):
        return None
    q, k, v = np.split(w, [s.heads * s.dim, (s.heads + s.kv) * s.dim])

    return [(f"blk.{layer}.attn_q.weight", paired(q, s.dim)), (f"blk.{layer}.attn_k.weight", paired(k, s.dim)),
            (f"blk.{layer}.attn_v.weight", v)]


INDEXER = {"wq_b.weight": "attn_q_b.weight", "wk.weight": "attn_k.weight", "k_norm.weight": "k_norm.weight",
           "k_norm.bias": "k_norm.bias", "weights_proj.weight": "proj.weight"}
HY3 = {"router.gate.weight": "ffn_gate_inp.weight", "expert_bias": "exp_probs_b",
       "shared_mlp.gate_proj.weight": "ffn_gate_shexp.weight", "shared_mlp.up_proj.weight": "ffn_up_shexp.weight",
       "shared_mlp.down_proj.weight": "ffn_down_shexp.weight"}


def renamed(table, marker, prefix, name, w):
    """Renames the tensors of a part of a layer by a table of their last words."""
    if marker not in name or name.split(marker)[1] not in table:
        return None
    return [(f"blk.{name.split('.')[2]}.{prefix}{table[name.split(marker)[1]]}", w)]


def convert(arch, name, w, c, s):
    """Returns what a tensor becomes: pairs of a name (Hugging Face's or GGUF's) and values; None: unchanged."""
    if arch in ENCODERS:
        return encoder(arch, name, w, c)
    if arch == "gemma4":
        return gemma4(name, w)
    if arch == "dbrx":
        return dbrx(name, w, c)
    if arch == "bitnet" and "_sub_norm" in name:
        return [(f"blk.{name.split('.')[2]}.{name.split('.', 4)[4]}", w)]
    if arch == "llama4":
        return llama4(name, w)
    if arch == "apertus":
        return apertus(name, w, c)
    if arch == "ernie4_5-moe":
        return moe_statics(name, w)
    if arch == "afmoe" and name.endswith(".expert_bias"):
        return [(f"blk.{name.split('.')[2]}.exp_probs_b.bias", w)]
    if arch == "granitehybrid" and "shared_mlp" in name:
        return granite(name, w, c)
    if arch in RECURRENT:
        return recurrent(arch, name, w, c, s)
    if arch == "gpt-oss":
        return gpt_oss(name, w)
    if arch in ("qwen3next", "qwen35", "qwen35moe"):
        return qwen3_next(name, w, c)
    if arch == "gemma3n":
        return gemma3n(name, w)
    if arch == "bailingmoe":
        return bailing(name, w, c, s)
    if arch == "deci" and name.endswith((".q_proj.weight", ".k_proj.weight")):
        return [(name, paired(w, s.dim))]
    if arch == "mimo2" and name.endswith("attention_sink_bias"):
        return [(f"blk.{name.split('.')[2]}.attn_sinks.weight", w)]
    if arch == "hy_v3":
        return renamed(HY3, ".mlp.", "", name, w)
    if arch in ("deepseek32", "glm-dsa"):
        return renamed(INDEXER, ".indexer.", "indexer.", name, w) or latent(name, w, c, s)
    if arch == "deepseek2":
        return latent(name, w, c, s)
    if arch == "kimi-linear":
        return kimi(name, w, c, s)
    if arch in ("lfm2", "lfm2moe"):
        if name.endswith(".conv.conv.weight"):
            return [(name, w.reshape(w.shape[0], w.shape[-1]))]
        if name.endswith(".expert_bias"):
            return [(f"blk.{name.split('.')[2]}.exp_probs_b.bias", w)]
    return None


def recurrent_metadata(w, arch, c, s):
    version2 = arch not in ("mamba", "jamba")
    if version2:
        heads, groups, state = mamba2_sizes(c)
        dim = c.first("mamba_d_head", "mamba_head_dim", "head_dim")
        if dim in (None, "auto"):
            dim = int(c["mamba_expand"] * s.hidden) // heads
        w.add_ssm_inner_size(heads * dim)
        w.add_ssm_time_step_rank(heads)
        w.add_ssm_group_count(groups)
        w.add_ssm_state_size(state)
    else:
        expand = c.first("mamba_expand", "expand", default=2)
        w.add_ssm_inner_size(int(expand * s.hidden))
        rank = c.first("mamba_dt_rank", "time_step_rank", default="auto")
        w.add_ssm_time_step_rank(-(-s.hidden // 16) if rank == "auto" else rank)
        w.add_ssm_state_size(c.first("mamba_d_state", "state_size", default=16))
    w.add_ssm_conv_kernel(c.first("mamba_d_conv", "conv_kernel", default=4))
    if arch == "mamba":
        w.add_ssm_dt_b_c_rms(c["architectures"][0] == "FalconMambaForCausalLM")


LLAMA4 = {"attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1, "no_rope_layer_interval": 4,
          "use_qk_norm": True}


def refuse_unsayable(arch, c, s):
    """Refuses options that the format cannot store or that llama.cpp's graph does not know."""
    rope = c.first("rope_parameters", "rope_scaling", default={}) or {}
    limit = c.get("time_step_limit") or [0.0, "infinity"]
    kinds = c.get("layer_types") or []
    for unsayable, what in (
            (arch.startswith("qwen3") and "linear_attention" in kinds and
             kinds != ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * (len(kinds) // 4),
             "layer_types"),
            (arch == "qwen3next" and (c.get("mlp_only_layers") or not c.get("norm_topk_prob", True)), "mlp_only_layers"),
            (arch == "gemma3n" and not c.get("altup_correct_scale", True), "altup_correct_scale"),
            (arch == "dbrx" and c["ffn_config"].get("moe_normalize_expert_weights", 1) != 1,
             "moe_normalize_expert_weights"),
            (arch == "bitnet" and (c.get("hidden_act", "relu2") != "silu" or not c.get("tie_word_embeddings")),
             "hidden_act or tie_word_embeddings"),
            (arch == "modern-bert" and c.get("classifier_pooling") == "mean", "classifier_pooling"),
            (arch == "modern-bert" and (c.get("norm_bias") or c.get("classifier_bias")), "norm_bias or classifier_bias"),
            (arch == "llama4" and any(c.get(k, v) != v for k, v in LLAMA4.items()), "attention_chunk_size and others"),
            (arch == "cohere2moe" and c.get("shared_expert_combination_strategy") != "average",
             "shared_expert_combination_strategy"),
            (arch == "afmoe" and not c.get("mup_enabled"), "mup_enabled"),
            (arch == "afmoe" and [kind == "full_attention" for kind in kinds] !=
             [i % 4 == 3 for i in range(s.layers)], "layer_types"),
            (arch == "ernie4_5-moe" and c.get("moe_layer_end_index", -1) not in (-1, s.layers - 1),
             "moe_layer_end_index"),
            (arch == "gpt-oss" and kinds and kinds[0] != "sliding_attention", "layer_types"),
            (arch == "gpt-oss" and rope.get("rope_type") == "yarn" and rope.get("truncate", True), "truncate"),
            (arch == "deepseek2" and not c.get("rope_interleave", True), "rope_interleave"),
            (arch == "deepseek2" and rope.get("mscale") != rope.get("mscale_all_dim"), "mscale"),
            (arch in ("mamba2", "granitehybrid") and mamba2_sizes(c)[1] != 1, "n_groups"),
            (arch in RECURRENT and (limit[0] != 0 or not isinstance(limit[1], (str, dict))), "time_step_limit"),
            (arch.startswith("nemotron_h") and c.get("time_step_min", 0.001) != 0, "time_step_min"),
            (arch == "nemotron_h_moe" and (c["n_group"] != 1 or "mlp" in (c.get("layers_block_type") or [])),
             "n_group or layers_block_type"),
            (arch == "kimi-linear" and
             (c.get("linear_attn_config") or {"num_heads": c.get("linear_num_heads")})["num_heads"] != s.heads,
             "num_heads"),
            (arch == "kimi-linear" and not c.get("moe_renormalize", True), "moe_renormalize"),
            (c.get("mixer_rms_eps", c.get("layer_norm_epsilon")) != c.get("layer_norm_epsilon"), "mixer_rms_eps")):
        if unsayable:
            raise SystemExit(f"{what} cannot be stored in GGUF")


def nemotron_experts_metadata(w, c):
    kinds = c.get("layers_block_type") or ["moe" if k == "E" else k for k in c["hybrid_override_pattern"]]
    w.add_feed_forward_length([c["moe_intermediate_size"] if kind == "moe" else 0 for kind in kinds])
    w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_group_count(c["n_group"])
    if c.get("moe_latent_size"):
        w.add_moe_latent_size(c["moe_latent_size"])


def kimi_metadata(w, c):
    own = c.get("linear_attn_config") or {"short_conv_kernel_size": c.get("linear_conv_kernel_dim"),
                                          "head_dim": c.get("linear_head_dim")}
    w.add_ssm_conv_kernel(own["short_conv_kernel_size"])
    w.add_kda_head_dim(own["head_dim"])
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(c["kv_lora_rank"])
    w.add_rope_dimension_count(c["qk_rope_head_dim"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    w.add_expert_shared_count(c["num_shared_experts"])
    kinds = c.get("mlp_layer_types")
    w.add_leading_dense_block_count(kinds.count("dense") if kinds else c["first_k_dense_replace"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def metadata(w, arch, c, s):
    """Writes metadata beyond, or instead of, what make_gguf.py writes for all architectures."""
    refuse_unsayable(arch, c, s)
    kv = attends(arch, c, s)
    if kv:
        w.add_head_count_kv([s.kv if attention else 0 for attention in kv])
    if arch in RECURRENT:
        recurrent_metadata(w, arch, c, s)
    if arch == "granitehybrid":
        w.add_rope_scaling_finetuned(c.get("position_embedding_type") == "rope")
        w.add_expert_shared_feed_forward_length(c["shared_intermediate_size"])
    if arch == "nemotron_h":
        kinds = c.get("layers_block_type") or ["mlp" if k == "-" else k for k in c["hybrid_override_pattern"]]
        w.add_feed_forward_length([s.ffn if kind == "mlp" else 0 for kind in kinds])
    if arch == "nemotron_h_moe":
        nemotron_experts_metadata(w, c)
    if arch == "kimi-linear":
        kimi_metadata(w, c)
    if arch in ("lfm2", "lfm2moe"):
        w.add_shortconv_l_cache(c["conv_L_cache"])
    if arch == "lfm2moe":
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch in ("gpt-oss", "minimax-m2"):
        w.add_expert_feed_forward_length(s.ffn)
    if arch == "gpt-oss":
        w.add_sliding_window(c["sliding_window"])
    if arch == "minimax-m2":
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch in ("qwen35", "qwen35moe"):
        w.add_rope_dimension_sections([2, 2, 2, 0])
    if arch in ("qwen3next", "qwen35", "qwen35moe"):
        w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
        w.add_ssm_state_size(c["linear_key_head_dim"])
        w.add_ssm_group_count(c["linear_num_key_heads"])
        w.add_ssm_time_step_rank(c["linear_num_value_heads"])
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
        w.add_full_attention_interval(c.get("full_attention_interval", 4))
    if arch == "gemma3n":
        gemma3n_metadata(w, c)
    if arch == "gemma4":
        gemma4_metadata(w, c, s)
    if arch == "ernie4_5-moe":
        w.add_expert_shared_count(c["moe_num_shared_experts"])
        w.add_expert_shared_feed_forward_length(c["moe_num_shared_experts"] * c["moe_intermediate_size"])
        w.add_leading_dense_block_count(c["moe_layer_start_index"])
        w.add_interleave_moe_layer_step(c["moe_layer_interval"])
    if arch == "llama4":
        w.add_feed_forward_length(c["intermediate_size_mlp"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_interleave_moe_layer_step(c["interleave_moe_layer_step"])
    if arch == "dbrx":
        ffn, attention = c["ffn_config"], c["attn_config"]
        w.add_feed_forward_length(ffn["ffn_hidden_size"])
        w.add_expert_count(ffn["moe_num_experts"])
        w.add_expert_used_count(ffn["moe_top_k"])
        w.add_head_count_kv(attention["kv_n_heads"])
        if not c.get("rope_parameters"):
            w.add_rope_freq_base(attention["rope_theta"])
        w.add_clamp_kqv(attention.get("clip_qkv") or 0.0)
    if arch in ENCODERS:
        encoder_metadata(w, arch, c, s)
    if arch == "minicpm3":
        w.add_key_length(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        w.add_value_length(c["v_head_dim"])
        w.add_kv_lora_rank(c["kv_lora_rank"])
        w.add_q_lora_rank(c["q_lora_rank"])
        w.add_rope_dimension_count(c["qk_rope_head_dim"])
    if arch == "minicpm":
        w.add_embedding_scale(float(c["scale_emb"]))
        w.add_residual_scale(c["scale_depth"] / s.layers ** 0.5)
        w.add_logit_scale(s.hidden / c["dim_model_base"])
    if arch == "deepseek":
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_weights_scale(1.0)
    if arch == "mistral3":
        params = c["rope_parameters"]
        w.add_rope_scaling_yarn_log_mul(params["mscale_all_dim"])
        w.add_attn_temperature_scale(params["llama_4_scaling_beta"])
    if arch == "deci":
        heads, kv, widths = deci_layers(c, s)
        w.add_head_count(heads)
        w.add_head_count_kv(kv)
        w.add_feed_forward_length(widths)
        w.add_key_length(s.dim)
        w.add_value_length(s.dim)
    if arch == "mimo2":
        params = c["rope_parameters"]
        w.add_head_count_kv(mimo2_kv(c, s))
        w.add_value_length(c["v_head_dim"])
        w.add_sliding_window(c["sliding_window"])
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
        w.add_rope_freq_base_swa(params["sliding_attention"]["rope_theta"])
        w.add_rope_dimension_count(int(s.dim * params["full_attention"]["partial_rotary_factor"]))
        w.add_float32("mimo2.attention.value_scale", c["attention_value_scale"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch == "bailingmoe":
        w.add_leading_dense_block_count(c["first_k_dense_replace"])
        w.add_expert_shared_count(c["num_shared_experts"])
        w.add_expert_weights_scale(1.0)
        w.add_expert_weights_norm(c["norm_topk_prob"])
    if arch == "hy_v3":
        w.add_expert_shared_feed_forward_length(c["moe_intermediate_size"] * c["num_shared_experts"])
        w.add_expert_weights_norm(True)
        w.add_expert_weights_scale(c["router_scaling_factor"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if arch == "mellum":
        w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
        w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    if arch == "cohere2moe":
        cohere2moe(w, c)
    if arch in ("deepseek2", "deepseek32", "glm-dsa"):
        deepseek(w, c)
    if arch in ("deepseek32", "glm-dsa"):
        w.add_indexer_head_count(c["index_n_heads"])
        w.add_indexer_key_length(c["index_head_dim"])
        w.add_indexer_top_k(c["index_topk"])
    if arch == "glm-dsa" and c.first("indexer_types"):
        w.add_array(f"{w.arch}.attention.indexer.types", [kind == "full" for kind in c["indexer_types"]])


def cohere2moe(w, c):
    dense = c["mlp_layer_types"].count("dense")
    if dense:
        w.add_feed_forward_length(c["prefix_dense_intermediate_size"])
    w.add_expert_feed_forward_length(c["intermediate_size"])
    w.add_leading_dense_block_count(dense)
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])
    w.add_expert_shared_count(c["num_shared_experts"])
    w.add_expert_shared_feed_forward_length(c["intermediate_size"] * c["num_shared_experts"])
    w.add_expert_weights_norm(c["norm_topk_prob"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if c["expert_selection_fn"] == "sigmoid"
                             else gguf.ExpertGatingFuncType.SOFTMAX)


def encoder_metadata(w, arch, c, s):
    w.add_causal_attention(False)
    scores = "Classification" in c["architectures"][0]
    if c.get("type_vocab_size") is not None:
        w.add_token_type_count(c["type_vocab_size"])
    if scores and len(c.get("id2label", {})) > 1:
        w.add_classifier_output_labels(list(c["id2label"].values()))
    w.add_pooling_type(gguf.PoolingType.RANK if scores else gguf.PoolingType.MEAN)
    if "oberta" in c["architectures"][0]:
        w.add_context_length(c["max_position_embeddings"] - c["pad_token_id"] - 1)
    if arch == "modern-bert":
        w.add_layer_norm_eps(c["norm_eps"])
        w.add_sliding_window(c["local_attention"])
        w.add_sliding_window_pattern(c.get("global_attn_every_n_layers", 3))
        w.add_rope_freq_base(c["rope_parameters"]["full_attention"]["rope_theta"])
        w.add_rope_freq_base_swa(c["rope_parameters"]["sliding_attention"]["rope_theta"])
    if arch == "gemma-embedding":
        w.add_sliding_window(c["sliding_window"])


def gemma3n_metadata(w, c):
    w.add_altup_active_idx(c["altup_active_idx"])
    w.add_altup_num_inputs(c["altup_num_inputs"])
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_activation_sparsity_scale([statistics.NormalDist().inv_cdf(p) if p > 0 else float("-inf")
                                     for p in c["activation_sparsity_pattern"]])
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern([kind == "sliding_attention" for kind in c["layer_types"]])


def gemma4_metadata(w, c, s):
    own = c.get("per_layer_config", {})
    slides = [kind == "sliding_attention" for kind in c["layer_types"]]
    full = next((own[str(i)]["head_dim"] for i in range(s.layers) if not slides[i] and str(i) in own), s.dim)
    w.add_head_count_kv([own.get(str(i), {}).get("num_key_value_heads", s.kv) for i in range(s.layers)])
    for length, length_swa in ((w.add_key_length, w.add_key_length_swa), (w.add_value_length, w.add_value_length_swa)):
        length(full)
        length_swa(s.dim)
    w.add_rope_dimension_count(full)
    w.add_rope_dimension_count_swa(s.dim)
    params = c["rope_parameters"]
    w.add_rope_freq_base_swa(params["sliding_attention"]["rope_theta"])
    turning = int(full * params["full_attention"]["partial_rotary_factor"] / 2)
    w.add_tensor("rope_freqs.weight", np.float32([1.0] * turning + [1e30] * (full // 2 - turning)))
    w.add_shared_kv_layers(c["num_kv_shared_layers"])
    w.add_embedding_length_per_layer_input(c["hidden_size_per_layer_input"])
    if c.get("use_double_wide_mlp"):
        first = s.layers - c["num_kv_shared_layers"]
        w.add_feed_forward_length([s.ffn if i < first else 2 * s.ffn for i in range(s.layers)])


def deepseek(w, c):
    nope, rotary, value, rank = (c[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank"))
    w.add_head_count_kv(1)
    w.add_key_length(rank + rotary)
    w.add_value_length(rank)
    w.add_key_length_mla(nope + rotary)
    w.add_value_length_mla(value)
    w.add_kv_lora_rank(rank)
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_rope_dimension_count(rotary)
    third = not c["architectures"][0].startswith("DeepseekV2")
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if third else gguf.ExpertGatingFuncType.SOFTMAX)
    w.add_leading_dense_block_count(c.get("first_k_dense_replace", 0))
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c.get("routed_scaling_factor", 1.0))
    w.add_expert_weights_norm(c.get("norm_topk_prob", False))
    if third or c.get("topk_method") == "group_limited_greedy":
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
    scaling = c.first("rope_parameters", "rope_scaling", default={})
    if scaling.get("mscale_all_dim"):
        w.add_rope_scaling_yarn_log_mul(0.1 * scaling["mscale_all_dim"])
