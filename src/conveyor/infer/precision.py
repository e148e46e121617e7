"""`--infer-precision`: the numbers that a model answers in, chosen by its speed and by its accuracy on real images.

`fit` gives the source and the engine for a loaded model and an `AskedPrecision`; every command uses it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.files import cache_folder
from conveyor.infer import AnswerPrecision, quantize
from conveyor.infer.accuracy import Sample, data_options, sample, top1
from conveyor.infer.asked_precision import AskedPrecision
from conveyor.infer.engines import auto
from conveyor.infer.engines.engine import Engine, Source, open_named
from conveyor.infer.loaded import Loaded
from conveyor.measure import processor
from conveyor.measure.remembered import key_of, recall, remember, version
from conveyor.options.units import many

CHECK_BATCH = 32


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """The chosen source and engine, the measurements behind the choice, and notes for the user."""

    source: Source
    engine: str
    measured: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Plain JSON: `images`, `max_drop`, `top1` and `milliseconds` by precision, `weight_bits`, `kept_in_float`."""
    notes: tuple[str, ...] = ()

    @property
    def precision(self) -> AnswerPrecision:
        return self.source.precision

    def open(self, *, batch: int, threads: int, spin: bool = True) -> Engine:
        return open_named(self.source, self.engine, batch=batch, threads=threads, spin=spin)

    def to_json(self) -> dict[str, Any]:
        """What another process needs to open the same, with `again`."""
        file = self.source.onnx if self.precision == AnswerPrecision.INT8 else None
        return {"precision": self.precision, "engine": self.engine, "file": None if file is None else str(file)}

    @classmethod
    def again(cls, loaded: Loaded, said: dict[str, Any]) -> "Fit":
        """From `to_json`; the same model."""
        source = loaded.source
        if said["file"] is not None and source.precision != AnswerPrecision.INT8:
            return cls(
                Source.of_file(source.preprocessing, Path(said["file"]), source.batch, AnswerPrecision.INT8),
                said["engine"],
            )
        return cls(dataclasses.replace(source, precision=AnswerPrecision(said["precision"])), said["engine"])


def fit(
    loaded: Loaded,
    wanted: AskedPrecision,
    *,
    batch: int,
    threads: int,
    engine: str = "auto",
    fixed: int | None = None,
    data: "Data | None" = None,
    say: Callable[[str], None] = lambda line: None,
) -> Fit:
    """The source and engine for `wanted`, for `batch` images at a time; `fixed` is the only batch of an 8-bit model made now.

    `data`: images to calibrate and to check with; none: those of the data set that the model was trained on.
    Raises `UserError` when a precision that was asked for by name costs more than `max_drop`.
    """
    source = loaded.source
    asked = wanted.infer_precision or source.precision
    if source.precision == AnswerPrecision.INT8 and asked in (AnswerPrecision.FLOAT32, AnswerPrecision.BFLOAT16):
        raise UserError(f"{loaded.name} is an int8 export, its float32 numbers are gone: use the run it came from")
    if asked in (AnswerPrecision.FLOAT32, source.precision):
        source = dataclasses.replace(source, precision=AnswerPrecision(asked))
        choice = auto.choose(source, batch=batch, threads=threads, engine=engine)
        return Fit(source, choice.engine, _stored_measurements(loaded, asked), (choice.text(),))
    try:
        data = data or Data.of(loaded, wanted)
    except UserError as error:
        if asked == AnswerPrecision.INT8:
            raise UserError(f"int8 needs real images to set its ranges: {error}") from None
        plain = dataclasses.replace(
            source, precision=AnswerPrecision.FLOAT32 if asked == "auto" else AnswerPrecision(asked)
        )
        choice = auto.choose(plain, batch=batch, threads=threads, engine=engine)
        what = "float32 is taken" if asked == "auto" else f"what {asked} costs was not measured"
        return Fit(plain, choice.engine, {}, (f"note: {what}: {error}", choice.text()))
    plain = dataclasses.replace(source, precision=AnswerPrecision.FLOAT32)
    return _Search(plain, wanted, data, batch, threads, engine, fixed or plain.batch, say).run(asked)


def _stored_measurements(loaded: Loaded, precision: str) -> dict[str, Any]:
    """The measurements that an export holds of its own precision."""
    measured = loaded.spec.get("measured")
    return dict(measured) if isinstance(measured, dict) and precision != AnswerPrecision.FLOAT32 else {}


@dataclasses.dataclass(frozen=True, slots=True)
class Data:
    """Labelled images; `check` must be ones that calibration does not see."""

    calibration: Sample
    check: Sample

    @classmethod
    def of(cls, loaded: Loaded, wanted: AskedPrecision) -> "Data":
        """The run's own images: training ones to calibrate with, validation ones to check."""
        options, about, names = data_options(loaded, wanted.data_dir), loaded.preprocessing, loaded.class_names
        check = sample(options, "validation", about, wanted.check_images, names)
        return cls(sample(options, "train", about, wanted.calibration_images, names), check)


@dataclasses.dataclass
class _Search:
    """Speeds of all candidates first, then the accuracy of the fastest, until one passes."""

    plain: Source
    wanted: AskedPrecision
    data: Data
    batch: int
    threads: int
    engine: str
    fixed: int | None
    say: Callable[[str], None]
    rates: dict[str, float] = dataclasses.field(default_factory=dict)
    ranked: list[tuple[str, str]] | None = None
    kept: int = 0
    """Layers of the ranking that stay in float."""

    @property
    def bits(self) -> int:
        return self.wanted.weight_bits or processor.weight_bits()

    def run(self, asked: str) -> Fit:
        wanted = (
            (asked,)
            if asked != "auto"
            else (AnswerPrecision.INT8, *((AnswerPrecision.BFLOAT16,) if processor.multiplies_bfloat16() else ()))
        )
        sources = {AnswerPrecision.FLOAT32: self.plain}
        for precision in wanted:
            half = dataclasses.replace(self.plain, precision=AnswerPrecision.BFLOAT16)
            sources[precision] = self._int8() if precision == AnswerPrecision.INT8 else half
        failed: dict[str, str] = {}
        while True:
            choice = auto.choose(list(sources.values()), batch=self.batch, threads=self.threads, engine=self.engine)
            left = [
                name for name in sources if name not in failed and (asked == "auto" or name != AnswerPrecision.FLOAT32)
            ]
            timed = {name: found for name in left if (found := choice.fastest(name))}
            if not timed:
                raise UserError(f"{failed.get(asked) or f'no engine can run this model in {asked}'}")
            precision = min(timed, key=lambda name: timed[name][1])
            engine = timed[precision][0]
            self.rates[AnswerPrecision.FLOAT32] = self._rate(self.plain, self._reference(choice))
            if precision != AnswerPrecision.FLOAT32:
                self.rates[precision] = self._rate(sources[precision], engine)
            drop = self.rates[AnswerPrecision.FLOAT32] - self.rates[precision]
            if drop <= self.wanted.max_drop:
                break
            if precision == AnswerPrecision.INT8 and self._keep_more():
                self.say(f"{self._text(precision)}: tried again with {many(self.kept, 'layer')} in float")
                sources[AnswerPrecision.INT8] = self._int8()
                continue
            failed[precision] = (
                f"{self._text(precision)}: more than the {self.wanted.max_drop:g} points allowed, nothing was written; "
                "allow more with --max-drop or take another --infer-precision"
            )
            self.say(f"{self._text(precision)}: more than the {self.wanted.max_drop:g} points allowed")
        return Fit(sources[precision], engine, self._measured(choice, precision), self._notes(choice, precision))

    def _int8(self) -> Source:
        names = [name for name, _ in (self.ranked or [])[: self.kept]]
        file = quantize.int8_file(self.plain, self.data.calibration.images, self.fixed, self.bits, names)
        return Source.of_file(self.plain.preprocessing, file, self.fixed, AnswerPrecision.INT8)

    def _keep_more(self) -> bool:
        """Twice as many layers in float as before; at most half of all, beyond that there is not much int8 left."""
        if self.ranked is None:
            self.ranked = quantize.ranked_layers(self.plain, self.data.calibration.images, self.fixed)
        most = len(self.ranked) // 2
        if self.kept >= most:
            return False
        self.kept = min(max(1, 2 * self.kept), most)
        return True

    def _reference(self, choice: auto.Choice) -> str:
        found = choice.fastest(AnswerPrecision.FLOAT32)
        return found[0] if found is not None else self.plain.engines()[0]

    def _rate(self, source: Source, engine: str) -> float:
        """Top-1 in percent; remembered, as it does not change until the model, the images or the libraries do."""
        cache = cache_folder() / "accuracy.json"
        versions = [version(name) for name in ("torch", "onnxruntime", "openvino")]
        here = [processor.processor().name, *processor.processor().features]
        check = self.data.check
        digests = [quantize.digest(source), quantize.digest_of(check.images), quantize.digest_of(check.labels)]
        key = key_of(source.precision, engine, versions, here, digests)
        known = recall(cache, key)
        if known is not None:
            return float(known)
        size = source.batch or CHECK_BATCH
        opened = open_named(source, engine, batch=size, threads=self.threads)
        found = top1(opened, check, size)
        opened.close()
        remember(cache, key, found)
        return found

    def _text(self, precision: str) -> str:
        plain, other = self.rates[AnswerPrecision.FLOAT32], self.rates[precision]
        return (
            f"top-1 on {many(len(self.data.check), 'image')}: float32 {plain:.2f} %, {precision} {other:.2f} % "
            f"({other - plain:+.2f} points)"
        )

    def _layers(self) -> list[str]:
        return [layer for _, layer in (self.ranked or [])[: self.kept]]

    def _measured(self, choice: auto.Choice, precision: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "images": len(self.data.check), "max_drop": self.wanted.max_drop, "top1": dict(self.rates),
            "milliseconds": choice.milliseconds, "batch": choice.batch, "threads": choice.threads,
        }  # fmt: skip
        if precision == AnswerPrecision.INT8:
            found |= {"weight_bits": self.bits, "kept_in_float": self._layers()}
        return found

    def _notes(self, choice: auto.Choice, precision: str) -> tuple[str, ...]:
        notes = [self._text(name) for name in self.rates if name != AnswerPrecision.FLOAT32]
        plain, ours = choice.fastest(AnswerPrecision.FLOAT32), choice.fastest(precision)
        if precision == AnswerPrecision.INT8 and self.kept:
            notes.append(f"{self.kept} of {len(self.ranked or [])} layers stay in float: {', '.join(self._layers())}")
        if precision == AnswerPrecision.BFLOAT16 and not processor.multiplies_bfloat16():
            notes.append("note: this processor does not multiply bfloat16: float32 is at least as fast")
        if plain is not None and ours is not None and precision != AnswerPrecision.FLOAT32:
            ratio = plain[1] / ours[1]
            said = f"batch {choice.batch}: float32 {plain[1]:.2f} ms ({plain[0]}), {precision} {ours[1]:.2f} ms ({ours[0]})"
            verdict = f"{ratio:.2f} times as fast" if ratio > 1 else f"{precision} is NOT faster on this processor"
            notes.append(f"{said}: {verdict}")
        notes.append(f"precision {precision}")
        return tuple(notes)
