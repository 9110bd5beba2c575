"""Metrics of speech, STOI and PESQ, as the packages pystoi and pesq compute them."""

from __future__ import annotations

import dataclasses
import importlib
import math
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import signal

from jaxrnn.errors import InputError, optional_package
from jaxrnn.evaluation.metrics.protocol import Metric, NoValueError
from jaxrnn.evaluation.metrics.sums import paired
from jaxrnn.evaluation.metrics.whole import LIMIT, Judgement, over_whole

#: What pystoi returns where there is too little speech, and the seconds below which it cannot run.
_TOO_LITTLE, _SHORTEST = 1e-5, 0.4

#: Samples a second of telephone sound, which PESQ judges as it is.
_NARROW = 8_000


def _needed(package: str, kind: str) -> Any:
    with optional_package(package, f"the metric {kind}"):
        return importlib.import_module(package)


def _sounds(output: np.ndarray, reference: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    x, s = paired(output, reference)
    for what, sound in (("reference", s), ("output", x)):
        if not sound.any():
            raise NoValueError(f"the {what} is silent")
    return x, s


def _of_sound(kind: str, judge: Judgement, called: str, output: str | None, limit: float, **options: Any) -> Metric:
    """A metric of whole sounds."""
    metric = over_whole(judge, called, output, limit=limit, options={"kind": kind, **options})

    def start(rate: Any) -> Any:
        if rate != int(rate):
            raise InputError(f"the metric {kind} judges sound, not an output of {float(rate):g} frames a second")
        if options.get("band") == "wide" and rate == _NARROW:
            raise InputError("pesq of the wide band needs sound of at least 16,000 samples a second: take band: narrow")
        return metric.start(int(rate))

    return dataclasses.replace(metric, start=start)


def _intelligibility(kind: str, called: str, output: str | None, limit: float) -> Metric:
    pystoi = _needed("pystoi", kind)

    def judge(output: np.ndarray, reference: np.ndarray | None, rate: float) -> float:
        x, s = _sounds(output, reference)
        value = _TOO_LITTLE
        if len(s) > _SHORTEST * rate:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = float(pystoi.stoi(s, x, rate, extended=kind == "estoi"))
        if value == _TOO_LITTLE:
            raise NoValueError("there are less than 30 frames (0.4 s) of speech")
        return value

    return _of_sound(kind, judge, called, output, limit)


def stoi(called: str = "stoi", output: str | None = None, limit: float = LIMIT) -> Metric:
    """Short-time objective intelligibility, 0 to 1, no unit; higher is better.

    Taal et al., "An algorithm for intelligibility prediction of time-frequency weighted noisy speech", 2011, as the
    package pystoi computes it, for sound of any rate. Not defined where either sound is silent or
    has too little speech.
    """
    return _intelligibility("stoi", called, output, limit)


def estoi(called: str = "estoi", output: str | None = None, limit: float = LIMIT) -> Metric:
    """Extended STOI, at most 1, no unit; higher is better. It hears modulated noise as well.

    Jensen and Taal, "An algorithm for predicting the intelligibility of speech masked by modulated noise maskers",
    2016.
    """
    return _intelligibility("estoi", called, output, limit)


def pesq(called: str | None = None, output: str | None = None, band: str = "wide", limit: float = LIMIT) -> Metric:
    """PESQ, a mean opinion score of about 1 to 4.64, no unit; higher is better.

    ITU-T P.862.2 for the wide band, P.862 with P.862.1 for the narrow one, as the package pesq computes it: at 16 kHz,
    or for the narrow band at 8 kHz where the sound has that rate. Other rates are resampled to 16 kHz. Not defined
    where no utterance is found, or in less than a quarter of a second.

    Args:
        called: name of the column; by default ``pesq`` or ``pesq_narrow``.
        output: the output that it judges.
        band: ``"wide"`` or ``"narrow"``.
        limit: seconds of the longest recording that is judged.

    Raises:
        InputError: there is no such band.
        MissingPackageError: the package is not installed.
    """
    if band not in ("wide", "narrow"):
        raise InputError(f"pesq: band must be 'wide' or 'narrow', not {band!r}")
    package = _needed("pesq", "pesq")
    mode = {"wide": "wb", "narrow": "nb"}[band]

    def judge(output: np.ndarray, reference: np.ndarray | None, rate: int) -> float:
        x, s = _sounds(output, reference)
        at = _NARROW if rate == _NARROW else 16_000
        if rate != at:
            ratio = Fraction(at, rate)
            x, s = (signal.resample_poly(sound, ratio.numerator, ratio.denominator) for sound in (x, s))
        try:
            value = float(package.pesq(at, s.astype(np.float32), x.astype(np.float32), mode))
        except package.PesqError as error:
            said = error.args[0] if error.args else error
            raise NoValueError(said.decode() if isinstance(said, bytes) else str(said)) from error
        if math.isnan(value):
            raise NoValueError("the package pesq found no value")
        return value

    name = called or {"wide": "pesq", "narrow": "pesq_narrow"}[band]
    return _of_sound("pesq", judge, name, output, limit, band=band)
