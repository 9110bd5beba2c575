"""Short-time spectra, and networks over spectra as functions from waveform to waveform.

`stft` and `istft` are pure JAX functions. `Waveform` puts a network between both. All these functions stream with
`jaxrnn.stream`, exactly and for any length.
"""

from __future__ import annotations

from jaxrnn.audio.frames import Frames, istft, stft
from jaxrnn.audio.networks import Network
from jaxrnn.audio.sounds import read_sound, write_wav
from jaxrnn.audio.waveforms import Waveform, latency

__all__ = ["Frames", "Network", "Waveform", "istft", "latency", "read_sound", "stft", "write_wav"]
__dir__ = __all__.copy
