"""Timing jaxrnn beside other engines: ``python -m benchmarks``."""

#: The benchmarks with their summaries, in the order in which ``all`` runs them.
BENCHMARKS = {
    "step": "Single steps of streaming networks, NumPy in and out, and with device arrays.",
    "recording": "Ten seconds of audio: one scan beside a call a frame; all of DTLN; many streams at once.",
    "corpus": "A thousand files through DTLN, from files to a table; on all cores; files of three hours.",
    "sequence": "LSTM, GRU and RNN over sequences, as operators and as bodies of Scan; one iteration.",
    "train": "Forward and backward pass of LSTM and GRU layers, beside PyTorch.",
    "pulses": "One pulse of streamed offline networks, beside tract's pulse.",
    "export": "A step of exported files in ONNX Runtime, beside the offline graph; and how many nodes they have.",
    "streams": "One frame of 64 live streams, and of 1 to 10,000: in one pool, beside a step each.",
    "start": "From the start of a process to its first output.",
    "scale": "Time and peak memory as frames, hidden units, batch and layers grow.",
    "accelerator": "The same on the first device that JAX has, and how much of its limits is used.",
}
