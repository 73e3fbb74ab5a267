"""Writes tests/goldens/quant: random blocks of each type, and their values as decoded by the gguf package or, for
Q1_0 and Q2_0, as NumPy made them.

NAME.bin has the blocks, NAME.f32 the values. For types that gguf can write: quantize.f32 (rows) and NAME.quantized."""
import numpy as np, sys
from gguf import quants, GGMLQuantizationType as T, GGML_QUANT_SIZES
out = sys.argv[1]
rng = np.random.default_rng(20260101)
names = ("Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S "
         "IQ4_NL IQ4_XS TQ1_0 TQ2_0 MXFP4 NVFP4").split()
half = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
        "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0],
        "IQ3_XXS": [0], "IQ3_S": [0], "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}
for n in names:
    t = T[n]; bs, nb = GGML_QUANT_SIZES[t]
    count = max(4, 1024 // bs)
    b = rng.integers(0, 256, (count, nb), dtype=np.uint8)
    for at in half.get(n, []):
        h = (rng.standard_normal(count) * 0.02).astype(np.float16); h[0] = np.float16(3e-7)
        b[:, at:at+2] = h.view(np.uint8).reshape(count, 2)
    if n == "IQ1_M":  # a finite fp16 scale: its exponent, spread over the words, must be below 31
        b[:, 48+7] = (b[:, 48+7] & 0x0f) | 0x20
    if n == "MXFP4": b[:, 0] = rng.integers(110, 135, count); b[0, 0] = 0; b[1, 0] = 1
    with np.errstate(all="ignore"):
        v = quants.dequantize(b.reshape(1, -1), t).astype(np.float32)
    assert np.isfinite(v).all(), n
    b.tofile(f"{out}/{n.lower()}.blocks"); v.tofile(f"{out}/{n.lower()}.values")
x = rng.standard_normal((4, 256)).astype(np.float32) * np.array([[1e-3],[0.02],[1],[50]], np.float32)
x[1, :32] = 0; x[2, 64:96] = 0.25
x.tofile(f"{out}/source.values")
for n in "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 TQ1_0 TQ2_0 MXFP4".split():
    quants.quantize(x, T[n]).tofile(f"{out}/{n.lower()}.quantized")

# Formats that the package only names: an fp16 scale, then codes from the lowest bits of each byte on.
for n, bits, block, level in (("q1_0", 1, 128, lambda code: 2 * code - 1), ("q2_0", 2, 64, lambda code: code - 1)):
    rng = np.random.default_rng(20261128 + bits)
    codes = rng.integers(0, 1 << bits, (8, block))
    scales = (rng.standard_normal((8, 1)) * 0.02).astype(np.float16); scales[0] = np.float16(3e-7)
    places = np.arange(0, 8, bits)
    packed = (codes.reshape(8, -1, len(places)) << places).sum(axis=-1).astype(np.uint8)
    np.hstack([scales.view(np.uint8), packed]).tofile(f"{out}/{n}.blocks")
    (scales.astype(np.float32) * level(codes).astype(np.float32)).tofile(f"{out}/{n}.values")
