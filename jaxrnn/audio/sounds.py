"""Sound files: one channel of samples, of a rate that is given or asked for."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import signal
from scipy.io import wavfile

from jaxrnn._files.arrays import MAX_ARRAY_BYTES
from jaxrnn._files.stores import check_regular, local_path
from jaxrnn._files.writing import in_place_of
from jaxrnn.errors import InputError, JaxrnnError, is_count, optional_package

#: Suffixes of sound. Files other than WAV need soundfile, which refuses what it cannot read.
SOUNDS = (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aif", ".aiff", ".au", ".caf", ".w64", ".m4a", ".aac")

#: The highest sample rate; sound has up to 768,000 samples per second, including ultrasound of bats.
MAX_RATE = 1_000_000
#: The largest ratio of two sample rates.
MAX_RATIO = 100
#: The largest number of phases of a resampling filter: the larger rate over the greatest common divisor.
MAX_PHASES = 100_000


def check_rate(rate: int, what: str) -> None:
    """Refuse an impossible sample rate."""
    if not 0 < rate <= MAX_RATE:
        raise InputError(f"{what} must be from 1 to {MAX_RATE:,} samples a second, not {rate:,}")


def resampling(path: Any, rate: int, target: int) -> tuple[int, int]:
    """Return the factors of upsampling and downsampling of a sound between two sample rates."""
    check_rate(rate, f"{path}: the sample rate")
    check_rate(target, f"{path}: the requested rate")
    if max(rate, target) > MAX_RATIO * min(rate, target):
        raise InputError(
            f"{path}: the header says {rate:,} samples a second, and the requested rate is {target:,}: more than a "
            f"factor of {MAX_RATIO}; correct the header, or resample the recording"
        )
    common = math.gcd(rate, target)
    up, down = target // common, rate // common
    if max(up, down) > MAX_PHASES:
        raise InputError(
            f"{path}: resampling from {rate:,} to {target:,} samples a second needs a filter of {max(up, down):,} "
            f"phases, and at most {MAX_PHASES:,} are allowed; resample to a rate with a larger common divisor"
        )
    return up, down


def read_sound(path: str | Path, rate: int | None = None) -> tuple[np.ndarray, int]:
    """Return the samples of a sound file, ``float32[samples]`` of full scale 1, and the sample rate.

    WAV files are read without further packages; FLAC, MP3, Ogg and other files need soundfile.

    Args:
        path: the file, with a single channel.
        rate: resample to this rate, with `scipy.signal.resample_poly`; by default the rate of the file.

    Raises:
        InputError: the file cannot be read, or has several channels.
        MissingPackageError: soundfile is not installed.
    """
    kind = "WAV"
    try:
        file = check_regular(path, MAX_ARRAY_BYTES)
        if (suffix := file.suffix[1:].upper()) != "WAV":
            kind = f"{suffix or 'sound'} by soundfile"
        samples, own = (_read_wav if kind == "WAV" else _read_other)(file)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except JaxrnnError:
        raise
    except (ValueError, EOFError, RuntimeError) as error:
        raise InputError(f"{path} cannot be read as {kind}: {getattr(error, 'error_string', error)}") from error
    except Exception as error:  # SciPy does not check that the parts of a file exist and fit
        raise InputError(f"{path} cannot be read as {kind}: a part of it is missing or wrong") from error
    if samples.ndim != 1:
        raise InputError(f"{path} has {samples.shape[-1]} channels, but one is expected")
    check_finite(samples, path)
    if samples.dtype.kind in "iu":
        middle = 128 if samples.dtype == np.uint8 else 0
        samples = (samples.astype(np.float64) - middle) / (128 if middle else -float(np.iinfo(samples.dtype).min))
    if rate is not None and rate != own:
        samples, own = signal.resample_poly(samples.astype(np.float64), *resampling(path, own, rate)), rate
    return samples.astype(np.float32), own


def check_finite(samples: np.ndarray, path: Any, first: int = 0) -> None:
    """Refuse samples ``[samples, ...]`` of a file, from number ``first`` on, that are NaN or infinite."""
    if samples.dtype.kind in "fc" and not (finite := np.isfinite(samples)).all():
        place = tuple(np.argwhere(~finite)[0])
        raise InputError(f"{path}: sample {first + place[0]:,} is {samples[place]}: sound has finite samples")


def _read_wav(path: Path) -> tuple[np.ndarray, int]:
    with warnings.catch_warnings():
        # Sound files may contain chunks of other programs, such as the peak of the samples.
        warnings.filterwarnings("ignore", "Chunk", wavfile.WavFileWarning)
        rate, samples = wavfile.read(path)
    return samples, rate


def _read_other(path: Path) -> tuple[np.ndarray, int]:
    with optional_package("soundfile", f"reading {path}", "audio"):
        import soundfile
    with soundfile.SoundFile(path) as file:
        if file.frames * file.channels > MAX_ARRAY_BYTES // 4:
            raise InputError(f"{path} has {file.frames:,} samples, which is too many to read at once")
        return file.read(dtype="float32"), file.samplerate


def write_wav(path: str | Path, samples: Any, rate: int) -> None:
    """Write ``float[samples]`` of full scale 1 as a 16-bit WAV file with one channel; clip larger samples.

    Raises:
        InputError: a sample is NaN, the samples have several axes, or the rate is not a whole number.
    """
    if np.ndim(samples) != 1:
        raise InputError(f"{path} has one channel: the samples must have one axis, not {np.ndim(samples)}")
    if not is_count(rate, 1) or rate >= 2**31:
        raise InputError(f"the sample rate of {path} must be a whole number from 1 to 2**31 - 1, not {rate!r}")
    samples = np.asarray(samples)
    if samples.dtype.kind not in "fiub":
        raise InputError(f"the samples of {path} must be real numbers, not {samples.dtype.name}")
    count = int(np.isnan(samples).sum())
    if count:
        raise InputError(f"{path} cannot hold the {count:,} samples that are NaN: write NumPy arrays (.npz) instead")
    with in_place_of(local_path(path)) as file:
        wavfile.write(file, rate, as_int16(samples))


def as_int16(samples: Any) -> np.ndarray:
    """Return samples of full scale 1 as 16-bit integers; clip larger samples. Samples of `read_sound` stay the same."""
    return np.clip(np.round(np.asarray(samples, np.float64) * 2**15), -(2**15), 2**15 - 1).astype(np.int16)
