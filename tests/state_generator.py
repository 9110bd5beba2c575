"""Random step models with known state variables.

`case` draws kinds of update (`state_updates`), names, layouts, fixed or open sizes, and data that resembles state.
`dressed` draws names in four languages, and state whose next value leaves in another shape or type.
"""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from small_models import make_model
from state_updates import CHUNKED, EVIDENT, FIXED_BY_WEIGHTS, UPDATES

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL

#: A value of a graph and its layout, ``"BF"`` for one frame or ``"TBF"`` for several.
Signal = tuple[str, str]

#: Naming conventions, for the input and the output.
CONVENTIONS = (
    *("{}|{}_out", "{}|out_{}", "{}|{}_next", "{}|next_{}", "{}|new_{}", "{}|{}_new", "{}|updated_{}"),
    *("past_{}|present_{}", "prev_{}|{}", "{}_prev|{}", "{}_in|{}_out", "in_{}|out_{}", "input_{}|output_{}"),
    *("old_{}|new_{}", "{}In|{}Out", "initial_{}|final_{}"),
)
#: PyTorch's conventions for h and c.
LETTERS = ("{}|{}n", "{}0|{}n", "{}_0|{}_n")
STATE_WORDS = "h s state hidden hidden_state memory cache carry buf enc_state rnn_h conv_cache lstm_state"
#: Words for data that are names of state variables in some cases.
DATA_WORDS = "k v key value x audio frames mask mel noisy tokens"
INPUTS = "x inp mic frame features mel audio noisy spec input signal obs far_end"
OUTPUTS = "y out output logits enhanced prob mask clean scores pred embedding hidden_features"
#: Names without meaning, as exporters number them.
NEUTRAL = (
    *("input_{}|output_{}", "input_{}|output_{}", "t{}|t{}", "onnx::Gather_{}|{}", "{}|{}", "arg{}|out{}"),
    *("args_{}|Identity_{}", "input.{}|add_{}"),
)
#: Extra data: without a further input, and all.
PLAIN_EXTRAS = ("features", "frequency", "joined", "mask", "residual")
EXTRAS = (*PLAIN_EXTRAS, "condition", "gain", "handed on", "reset", "speaker", "speaker", "unread")
#: Names of open sizes.
SYMBOLS = {
    "B": ("batch", "batch_size", "N"),
    "P": ("past", "P"),
    "P+": ("past_and_new", "Q"),
    "A": ("elements", "A"),
    "S": ("S", "chars"),
    "T": ("time", "T"),
    "W": ("n", "samples", "chunk"),
}
NAMES = ("conventional", "data word", "neutral", "one side", "other language")
#: Of other languages: conventions, words for state, and names of inputs and outputs.
LANGUAGES = {
    "German": (
        ("{}|{}_neu", "{}_alt|{}_neu", "{}|naechster_{}", "{}_vorher|{}_nachher", "{}_ein|{}_aus"),
        "zustand speicher puffer zelle gedaechtnis verlauf verborgen",
        "eingang ton rahmen merkmale messwert stimme",
        "ausgang maske ergebnis klarer_ton vorhersage verstaerkung rest_signal einbettung",
    ),
    "French": (
        ("{}|{}_suivant", "{}|nouvel_{}", "{}_precedent|{}_suivant", "{}_entree|{}_sortie", "ancien_{}|{}"),
        "etat memoire tampon cellule interne historique caches",
        "entree son trame voix mesure parole",
        "sortie masque resultat propre prediction gain_sortie reste plongement",
    ),
    "Spanish": (
        ("{}|{}_nuevo", "{}|nuevo_{}", "{}_anterior|{}_siguiente", "{}_entrada|{}_salida", "{}_viejo|{}"),
        "estado memoria bufer celda interno historial oculto",
        "entrada sonido trama voz medida habla",
        "salida mascara resultado limpio prediccion ganancia residuo incrustacion",
    ),
}
#: Other shapes and types in which the next value of a state leaves, or parts of it, or nothing.
DRESSES = ("squeezed", "flattened", "transposed", "float16", "double", "packed", "parted", "shown", "not returned")
CASTS = {"float16": TensorProto.FLOAT16, "double": TensorProto.DOUBLE}
#: The updates whose state the flow knows in each dress, with any names.
RECURRENT = ("LSTM node", "GRU node", "RNN node", "Scan", "Loop")
#: Updates that the flow proves. Names in other languages are no convention, so the finder asks about other updates.
PROVED = {"LSTM node", "GRU node", "RNN node", "Scan", "Loop", "LSTM written out", "growing cache", "sliding buffer"}
PROVED |= {"ring by ScatterElements", "ring by ScatterND"}
#: Buffers that each step fills.
FILLED = ("sliding buffer", "convolution cache")
DRESSED = dict.fromkeys(DRESSES, RECURRENT) | dict.fromkeys(("packed", "parted"), ("LSTM node",))
DRESSED |= dict.fromkeys(("shown", "not returned"), ("GRU node", "RNN node"))
#: Words for state of four languages and another script, and how they name the input and the output.
FOREIGN = (
    ("zustand speicher puffer", ("{}|{}_neu", "alt_{}|neu_{}", "{}|neuer_{}")),
    ("etat memoire tampon", ("{}|{}_suivant", "ancien_{}|nouveau_{}")),
    ("estado memoria bufer", ("{}|{}_nuevo", "viejo_{}|nuevo_{}")),
    ("stato memoria coda", ("{}|{}_nuovo", "vecchio_{}|nuovo_{}", "{}|prossimo_{}")),
    ("состояние память буфер", ("{}|{}_новый", "{}|новое_{}")),
)


@dataclasses.dataclass
class Case:
    """A step model and its state variables.

    Attributes:
        seed: argument of `case`.
        proto: the model.
        truth: output by input, for each state variable.
        conventional: exactly the names of state variables pair by convention, so the finder must not ask.
        evident: a reader of the names and the graph knows the state variables.
        updates, names, extras, sizes: the choices.
        dress: the dress of the first state, one of `DRESSES`, or empty.
        language: the language of the names.
        exchanged: two outputs have exchanged names, so the finder must ask.
        first: the values of state inputs in the file.
        compiles: no shape depends on a value.
        growing: the state grows with each step.
        ports: the inputs by name.
    """

    seed: int
    proto: onnx.ModelProto
    truth: dict[str, str]
    conventional: bool
    evident: bool
    updates: tuple[str, ...]
    names: str
    extras: tuple[str, ...]
    sizes: str
    compiles: bool
    growing: bool
    exchanged: bool
    ports: dict[str, Port] = dataclasses.field(repr=False)
    first: dict[str, np.ndarray] = dataclasses.field(repr=False)
    graph: Graph = dataclasses.field(repr=False)
    dress: str = ""
    language: str = "English"

    @property
    def description(self) -> str:
        parts = ["+".join(self.updates) or "stateless", self.names, self.language, self.dress, self.sizes, *self.extras]
        parts += ["exchanged"] * self.exchanged + ["with a default"] * bool(self.first)
        return f"{self.seed}: " + ", ".join(parts)

    def start(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw an initial state; values of the file stay."""
        return {name: self.ports[name].sample(rng) for name in self.truth} | self.first

    def frame(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the data inputs of one step."""
        return {name: port.sample(rng) for name, port in self.ports.items() if name not in self.truth}


@dataclasses.dataclass
class Port:
    """An input: element type, shape, and ``"zero"``, ``"positive"`` or any values."""

    kind: int
    shape: tuple[int, ...]
    values: str

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        if self.values == "zero":
            return np.zeros(self.shape, helper.tensor_dtype_to_np_dtype(self.kind))
        if self.kind == I64:
            return rng.integers(0, 3, self.shape)
        if self.kind == BOOL:
            return rng.random(self.shape) < 0.2
        normal = rng.normal(size=self.shape).astype(np.float32)
        return 0.5 + np.abs(normal) if self.values == "positive" else normal


class Names:
    """A source of distinct names for inputs and outputs."""

    def __init__(self, rng: random.Random, mode: str, data_pairs: bool, states: int, language: str = "English"):
        self.rng, self.mode, self.data_pairs, self.language = rng, mode, data_pairs, language
        self.taken: set[str] = set()
        self.words: set[str] = set()
        self.neutral = rng.choice(NEUTRAL).split("|")
        self.natural = mode != "neutral" or rng.random() < 0.3
        self.convention = rng.choice(CONVENTIONS) if rng.random() < 0.7 else None
        self.shared = rng.choice(STATE_WORDS.split()) if states > 1 and rng.random() < 0.4 else None
        self.number = rng.randrange(3)
        self.before_number, self.inside = rng.choice(("", "_")), rng.random() < 0.5
        self.paired = ""
        self.foreign, forms = rng.choice(FOREIGN)
        self.form = rng.choice(forms)

    def take(self, name: str) -> str:
        if name in self.taken:
            raise ValueError(name)
        self.taken.add(name)
        return name

    def numbered(self, side: int) -> str:
        while True:
            self.number += self.rng.choice((1, 1, 1, 2, 7))
            name = self.neutral[side].format(self.rng.choice((self.number, self.rng.randrange(40))))
            if name not in self.taken:
                return self.take(name)

    def pair(self, words: str) -> tuple[str, str]:
        """Name the input and the output of a state variable; ``words`` suit its kind of update."""
        rng = self.rng
        if self.mode == "neutral":
            return self.numbered(0), self.numbered(1)
        if self.mode == "one side":
            given, new = self.conventional(words)
            return (given, self.numbered(1)) if rng.random() < 0.5 else (self.numbered(0), new)
        if self.mode == "data word":
            word = rng.choice([word for word in DATA_WORDS.split() if word not in self.words])
            self.words.add(word)
            form = rng.choice(("{}|{}_out", "{}|{}_out", "{}_in|{}_out", "{}|new_{}"))
            return tuple(self.take(side.format(word)) for side in form.split("|"))
        if self.mode == "other language":
            self.number += 1
            word = f"{rng.choice(self.foreign.split())}{self.before_number}{self.number}"
            return tuple(self.take(side.format(word)) for side in self.form.split("|"))
        return self.conventional(words)

    def conventional(self, words: str) -> tuple[str, str]:
        """Name a state variable by convention."""
        rng = self.rng
        if self.language in LANGUAGES:
            forms, given = LANGUAGES[self.language][:2]
            word = rng.choice([word for word in given.split() if word not in self.words])
            self.words.add(word)
            return tuple(self.take(side.format(word)) for side in rng.choice(forms).split("|"))
        own, general = ([word for word in pool.split() if word not in self.words] for pool in (words, STATE_WORDS))
        form = self.convention or rng.choice(CONVENTIONS)
        word = self.shared or rng.choice(own if own and rng.random() < 0.6 else general)
        self.words.add(word)
        if self.shared:
            self.number += 1
            number = f"{self.before_number}{self.number}"
            form = form.replace("{}", "{}" + number) if self.inside else form.replace("|", number + "|") + number
        elif word in ("h", "c") and rng.random() < 0.3:
            form = rng.choice(LETTERS)
        if "|" in word:  # a pair, not a word
            form = word
        return tuple(self.take(side.format(word)) for side in form.split("|"))

    def data(self, side: int, word: str = "") -> str:
        """Name an input (side 0) or output (side 1) that is data."""
        if not self.natural:
            return self.numbered(side)
        if word:
            return self.take(word)
        if side == 0 and self.data_pairs:
            self.paired = self.rng.choice(DATA_WORDS.split()[4:])
            self.words.add(self.paired)
            return self.take(self.paired)
        if self.paired and self.data_pairs:
            self.data_pairs = False
            return self.take(self.paired + "_out")
        pool = LANGUAGES[self.language][2 + side] if self.language in LANGUAGES else (INPUTS, OUTPUTS)[side]
        spoken = {part for name in self.words for part in name.split("_")}
        return self.take(self.rng.choice([name for name in pool.split() if name not in self.taken | spoken]))


class Graph:
    """A builder of a graph.

    Layouts are strings with a letter for each axis: ``B`` batch, ``F`` features of a frame, ``H`` features of a state,
    ``T`` frames of a step, ``K`` frames of a buffer, ``P`` frames of a growing cache, ``S`` frames of a memory, ``1``
    for an axis of size 1, ``DE`` for features in two rows.
    """

    def __init__(
        self, rng: random.Random, names: Names, *, batch: int | None, opened: str, chunk: int, by_weights: bool
    ):
        self.rng, self.names, self.batch, self.opened, self.by_weights = rng, names, batch, opened, by_weights
        self.numbers = np.random.default_rng(rng.randrange(2**32))
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.ports: dict[str, Port] = {}
        self.pairs: dict[str, tuple[str, str]] = {}
        self.final: dict[str, str] = {}
        self.compiles = True
        streams = batch or (1 if opened == "baked" else rng.choice((1, 2)))
        self.size = {"B": streams, "F": 4, "H": rng.choice((4, 4, 6)), "K": 3, "T": chunk, "S": 5, "P": 2, "1": 1}
        self.size |= {"D": 2, "E": 2}
        self.open_letters = {"P"} | ({"B"} if batch is None else set())
        self.symbols: dict[str, str] = {}
        self.prefix = rng.choice(("unk__", "b", "u", "dim_"))
        self.given: dict[str, str] = {}
        self.fresh = rng.randrange(20)
        self.reset = self.dress = ""
        #: The state in another dress: its input, its parts so far, and the inputs that share an output.
        self.led, self.parts, self.sharing = "", [], []
        self.defaults = False
        self.first: dict[str, np.ndarray] = {}

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    # Values.

    def op(self, kind: str, *inputs: str | float, outputs: int = 1, **attributes):
        count = len(self.nodes)
        results = [f"/{kind}_{count}_{index}" for index in range(outputs)]
        values = [value if isinstance(value, str) else self.const(np.float32(value)) for value in inputs]
        self.nodes.append(helper.make_node(kind, values, results, name=f"{kind}_{count}", **attributes))
        return results[0] if outputs == 1 else results

    def const(self, array) -> str:
        name = f"/const_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, *shape: int) -> str:
        scale = 0.8 / np.sqrt(shape[-2] if len(shape) > 1 else 4)
        return self.const((scale * self.numbers.normal(size=shape)).astype(np.float32))

    def linear(self, x: str, given: int, wanted: int) -> str:
        """Multiply a matrix by weights."""
        if self.chance(0.3):
            return self.op("Gemm", x, self.weight(wanted, given), self.weight(wanted), transB=1)
        return self.op("MatMul", x, self.weight(given, wanted))

    def either_way(self, kind: str, first, second) -> str:
        return self.op(kind, first, second) if self.chance(0.5) else self.op(kind, second, first)

    def squeeze(self, x: str, *axes: int) -> str:
        return self.op("Squeeze", x, self.const(np.array(axes)))

    def slice(self, x: str, start, stop, axis: int) -> str:
        bounds = (bound if isinstance(bound, str) else self.const(np.array([bound])) for bound in (start, stop))
        return self.op("Slice", x, *bounds, self.const(np.array([axis])))

    def turn(self, x: str, old: str, new: str) -> str:
        """Change the layout; axes in only one of the layouts have size 1."""
        if "D" in old and "D" not in new:
            x, old = self.op("Reshape", x, self.const(np.array([0, -1]))), "BF"
        if "D" in new and "D" not in old:
            return self.op("Reshape", self.turn(x, old, "BF"), self.const(np.array([0, 2, -1])))
        gone = [axis for axis, letter in enumerate(old) if letter == "1" or letter not in new]
        rest = [letter for letter in old if letter != "1" and letter in new]
        wanted = [letter for letter in new if letter in rest]
        added = [axis for axis, letter in enumerate(new) if letter not in rest]
        if old == new:
            return x
        if gone:
            x = self.squeeze(x, *gone)
        if rest != wanted:
            x = self.op("Transpose", x, perm=[rest.index(letter) for letter in wanted])
        return self.op("Unsqueeze", x, self.const(np.array(added))) if added else x

    def frame(self, signal: Signal) -> str:
        """Return the frame of a signal, or the mean of its frames, as ``"BF"``."""
        x, order = signal
        if order == "BF":
            return x
        if self.size["T"] == 1 and "T" not in self.open_letters:
            return self.squeeze(x, 0)
        return self.op("ReduceMean", x, axes=[0], keepdims=0)

    def frames(self, signal: Signal) -> str:
        """Return the frames of a signal as ``"TBF"``."""
        return self.turn(*signal, "TBF")

    def like(self, signal: Signal, frames: str) -> Signal:
        """Return frames ``"TBF"`` in the layout of ``signal``."""
        return (self.squeeze(frames, 0), "BF") if signal[1] == "BF" else (frames, "TBF")

    def count(self, signal: Signal) -> int:
        """Return the number of frames of a signal."""
        return 1 if signal[1] == "BF" else self.size["T"]

    def order(self, letters: str) -> str:
        """Draw a layout of two axes."""
        if self.by_weights or self.chance(0.4):
            return letters
        forms = [letters, "1" + letters, letters[0] + "1" + letters[1:], letters + "1", letters + "11"]
        forms += [letters[1] + letters[0] + letters[2:], "1" + letters[::-1], letters[::-1]]
        if letters == "BF":
            forms.append("BDE")
        if self.batch == 1:
            forms.append(letters.replace("B", ""))
        return self.rng.choice([form for form in forms if len(form) <= 4])

    # Inputs and outputs.

    def dims(self, order: str, grown: bool = False) -> list[int | str]:
        """Return the declared dimensions; a growing cache has ``grown`` in an output."""

        def dim(letter):
            is_open = letter in self.open_letters
            if (is_open and self.opened != "one") or (self.by_weights and letter in "FH"):
                self.fresh += self.rng.choice((1, 1, 9))
                return f"{self.prefix}{self.fresh}"
            symbol = letter + "+" if grown and letter == "P" else letter
            return self.symbols.setdefault(symbol, self.rng.choice(SYMBOLS[symbol])) if is_open else self.size[letter]

        return [dim(letter) for letter in order]

    def input(self, name: str, order: str, kind: int = F32, values: str = "") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, self.dims(order)))
        self.ports[name] = Port(kind, tuple(self.size[letter] for letter in order), values)
        return name

    def data(self, order: str, kind: int = F32, word: str = "") -> str:
        return self.input(self.names.data(0, word), order, kind)

    def output(self, name: str, value: str, order: str, kind: int = F32) -> None:
        if value in self.final or value in self.ports or value.startswith("/const"):
            value = self.op("Identity", value)
        self.final[value] = name
        self.outputs.append(helper.make_tensor_value_info(name, kind, self.dims(order, grown=True)))

    def result(self, value: str, order: str, word: str = "") -> None:
        self.output(self.names.data(1, word), value, order)

    def state(self, order: str, words: str, kind: int = F32, values: str = "") -> str:
        given, new = self.names.pair(words)
        if self.dress == "parted" and len(self.sharing) < 2:
            return self.part(given, new, order)
        self.pairs[given] = (new, order)
        self.led = self.led or given
        value = self.input(given, order, kind, values)
        if self.defaults and not self.open_letters.intersection(order):
            self.first[given] = self.ports[given].sample(self.numbers)
            self.constants.append(numpy_helper.from_array(self.first[given], given))
        if self.reset and kind == F32 and not values:
            value = self.op("Where", self.reset, 0.0, value)
        self.given[value] = given
        return value

    def part(self, given: str, new: str, order: str) -> str:
        """Return a part of the state that two outputs return."""
        if not self.parts:
            self.size["L"], self.led = 2, given
            self.parts = self.op("Split", self.input(given, "L" + order), outputs=2, axis=0)
            self.pairs[given] = (new, order)
        else:
            self.pairs[self.led] = (f"{self.pairs[self.led][0]}, {new}", order)
        value = self.squeeze(self.parts[len(self.sharing)], 0)
        self.given[value] = new
        self.sharing.append(new)
        return value

    @property
    def replaced(self) -> set[str]:
        """The outputs that hold only state."""
        more = self.pairs[self.led][0] if self.dress in ("packed", "shown") else ""
        return {name for new, _ in self.pairs.values() for name in new.split(", ")} - {more}

    def dressed(self, given: str, value: str) -> bool:
        """Add the output of the first state in its dress; return False if the state has none."""
        new, order = self.pairs.get(given, (given, self.pairs[self.led][1]))
        if self.dress == "parted":
            if given in self.sharing:
                self.output(given, value, order)
            return given in self.sharing
        if self.dress == "packed" and len(self.parts) < 2:
            self.parts.append(value)
            self.sharing.append(given)
            if len(self.parts) == 2:
                axis = order.index("H")
                self.pairs[given] = (self.pairs[self.led][0], order)
                self.size["W"] = 2 * self.size["H"]
                joined = self.op("Concat", *self.parts, axis=axis)
                self.output(self.pairs[self.led][0], joined, order.replace("H", "W"))
            return True
        if given != self.led or self.dress in ("", "packed"):
            return False
        sizes = [self.size[letter] for letter in order]
        same = {"squeezed": "1" not in order, "transposed": sizes == sizes[::-1]}
        if len(order) < 2 or same.get(self.dress, False):
            raise ValueError(order)
        if self.dress == "squeezed":
            rest = "".join(letter for letter in order if letter != "1")
            self.output(new, self.turn(value, order, rest), rest)
        elif self.dress == "flattened":
            self.open_letters |= {"A"} if self.open_letters & {*order} else set()
            self.size["A"] = int(np.prod([self.size[letter] for letter in order]))
            self.output(new, self.op("Reshape", value, self.const(np.array([-1]))), "A")
        elif self.dress == "transposed":
            self.output(new, self.turn(value, order, order[::-1]), order[::-1])
        elif self.dress in CASTS:
            kind = CASTS[self.dress]
            self.output(new, self.op("Cast", value, to=kind), order, kind)
        return True

    def undressed(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the next states in the shapes and types of the inputs; ``found`` has the outputs of a step."""
        states = {}
        for given, (new, order) in self.pairs.items():
            shape, kind = self.ports[given].shape, helper.tensor_dtype_to_np_dtype(self.ports[given].kind)
            value = None if self.dress == "parted" and given == self.led else found.get(new)
            if given == self.led and self.dress == "transposed":
                value = value.reshape([self.size[letter] for letter in order[::-1]]).transpose()
            elif given in self.sharing and self.dress == "packed":
                value = np.split(value, 2, order.index("H"))[self.sharing.index(given)]
            elif given == self.led and self.dress == "parted":
                value = np.stack([found[each] for each in self.sharing])
            if value is not None:
                grows = "P" in order
                states[given] = value if grows else value.reshape(shape).astype(kind)
        return states

    def layout(self, state: str) -> str:
        """Return the layout of a state variable."""
        return self.pairs[self.given[state]][1]

    def update(self, state: str, value: str, shown: str = "") -> None:
        """Return the next value of a state; ``shown`` is a sequence ``"T1BH"`` that ends with the value."""
        if self.dress and self.dressed(self.given[state], value):
            if self.dress == "shown":
                self.output(self.pairs[self.led][0], shown, "T1BH")
            return
        new, order = self.pairs[self.given[state]]
        self.output(new, value, order, self.ports[self.given[state]].kind)

    def exchange(self) -> bool:
        """Exchange the names of two outputs with the next values of state of one kind, if there are two."""
        ends = {info.name: info for info in self.outputs}
        for one, other in itertools.combinations(self.pairs, 2):
            (new, order), (newer, its) = self.pairs[one], self.pairs[other]
            if order == its and self.ports[one].kind == self.ports[other].kind:
                ends[new].name, ends[newer].name = newer, new
                names = {new: newer, newer: new}
                self.final = {value: names.get(name, name) for value, name in self.final.items()}
                self.pairs |= {one: (newer, order), other: (new, its)}
                return True
        return False

    def proto(self) -> onnx.ModelProto:
        def rename(nodes):
            for node in nodes:
                node.input[:] = [self.final.get(name, name) for name in node.input]
                node.output[:] = [self.final.get(name, name) for name in node.output]
                for attribute in node.attribute:
                    rename(attribute.g.node)

        rename(self.nodes)
        self.rng.shuffle(self.inputs)
        self.rng.shuffle(self.outputs)
        return make_model(helper.make_graph(self.nodes, "step", self.inputs, self.outputs, self.constants))


def read_frame(g: Graph, chunk: bool) -> tuple[Signal, str]:
    """Add the first data input; return its signal and its layout, ``""`` for a token."""
    if chunk:
        order = g.rng.choice(("TBF", "BTF", "BFT", "B1TF"))
        x = g.data(order)
        return (g.turn(x, order, "TBF"), "TBF"), order
    if g.chance(0.1):
        token = g.data("B", I64, "token")
        return (g.op("Gather", g.weight(7, 4), token), "BF"), ""
    order = g.order("BF")
    x = g.data(order)
    if order == "BF" and g.batch is None and g.opened == "baked":
        return (g.op("Reshape", x, g.const(np.array([1, 4]))), "BF"), order
    return (g.turn(x, order, "BF"), "BF"), order


def before(g: Graph, extra: str, signal: Signal) -> Signal:
    """Add the part of an extra that precedes the updates."""
    x, order = signal
    if extra in ("speaker", "condition"):
        given = g.order("BF")
        word = g.rng.choice(("speaker", "style", "cond", "ref"))
        other = g.turn(g.data(given, word=word), given, "BF")
        if extra == "speaker":
            other = g.op("MatMul", other, g.weight(4, 4))
        x = g.either_way("Add", x, other)
        if order == "BF" and extra == "speaker":
            shown = g.order("BF")
            g.result(g.turn(x, "BF", shown), shown, g.rng.choice(("emb", "conditioned")))
    if extra == "handed on":
        given = g.order("BF")
        other = g.data(given, word=g.rng.choice(("bias", "style_vector")))
        g.result(g.op("Identity", other), given, g.rng.choice(("used", "target")))
        x = g.either_way("Add", x, g.turn(other, given, "BF"))
    if extra == "unread":
        g.data(g.rng.choice(("", "1")), I64, "sample_rate")
    if extra == "reset":
        g.reset = g.data("1", BOOL, "reset")
    if extra == "gain":
        x = g.op("Mul", x, g.data("1", word="gain_db"))
    if extra == "frequency":  # a recurrence over the features of one frame
        bins = g.turn(g.frame(signal), "BF", "FB1")
        direction, count = g.rng.choice((("forward", 1), ("bidirectional", 2)))
        swept = g.op(
            "GRU", bins, g.weight(count, 6, 1), g.weight(count, 6, 2), outputs=2, hidden_size=2, direction=direction
        )
        moved = g.op("Transpose", swept[0], perm=[2, 0, 1, 3])
        joined = g.op("Reshape", moved, g.const(np.array([0, 0, -1])))
        return g.squeeze(g.op("MatMul", joined, g.weight(2 * count, 1)), 2), "BF"
    return x, order


def after(g: Graph, extra: str, signal: Signal, read: Signal, order: str) -> None:
    """Add the part of an extra that follows the updates; ``read`` and ``order`` are from `read_frame`."""
    v = g.frame(signal)
    if extra in ("residual", "mask") and order:
        made = g.op("MatMul", v, g.weight(4, 4))
        made = g.op("Add", read[0], made) if extra == "residual" else g.op("Mul", read[0], g.op("Sigmoid", made))
        g.result(g.turn(made, read[1], order), order)
    if extra == "features":
        shown = g.order("BF")
        g.result(g.turn(g.op("Tanh", g.linear(v, 4, 4)), "BF", shown), shown)
    if extra == "joined":
        both = g.op("Concat", g.frame(read), v, axis=1)
        g.size["J"] = 8
        g.result(both, "BJ")


def case(seed: int) -> Case:
    """Draw a step model.

    Most cases without conventional names have only updates and extras that the graph makes evident.
    """
    return drawn(seed, random.Random(seed), "English", "")


def dressed(seed: int) -> Case:
    """Draw a step model with names in one of four languages; in half of the cases, a state leaves in another dress."""
    rng = random.Random(f"dressed {seed}")
    return drawn(seed, rng, rng.choice(("English", *LANGUAGES)), rng.choice(DRESSES) if rng.random() < 0.5 else "")


def drawn(seed: int, rng: random.Random, language: str, dress: str) -> Case:
    """Draw a step model with names in a language, and its first state in a dress."""
    mode = rng.choices(NAMES, (58, 12, 12, 9, 0 if dress or language != "English" else 9))[0]
    mode = "conventional" if language != "English" and mode == "data word" else mode
    shown = (mode != "conventional" and rng.random() < 0.75) or language != "English"
    proved = language != "English" or mode == "other language"
    known = UPDATES if not shown else PROVED if proved else EVIDENT
    updates = tuple(rng.choices(sorted(known), k=rng.choice((1, 1, 1, 1, 2, 2, 3))))
    if rng.random() < 0.06:
        updates = ()
    if dress:
        updates = (rng.choice(DRESSED[dress]), *updates[1:])
    extras = tuple(rng.sample(PLAIN_EXTRAS if shown else EXTRAS, rng.choice((0, 0, 1, 1, 2))))
    if not updates:  # of fixed size, it could as well run over time
        extras = tuple(extra for extra in extras if extra != "frequency")
    data_pairs = mode == "conventional" and not shown and not dress and rng.random() < 0.06
    if data_pairs:
        extras = (
            rng.choice(("mask", "residual")),
            *rng.sample(("features", "frequency", "joined"), rng.choice((0, 1))),
        )
    for attempt in range(100):
        try:
            names = random.Random(f"{seed} {attempt}")
            return build(seed, names, updates, extras, mode, data_pairs, language, dress)
        except ValueError:  # a name is taken
            continue
    raise AssertionError(f"no names for case {seed}")


def build(seed, rng, updates, extras, mode, data_pairs, language, dress) -> Case:
    """Build the model of these choices, or raise ValueError if two values get one name or a layout fits no dress."""
    names = Names(rng, mode, data_pairs, len(updates), language)
    by_weights = bool(updates) and set(updates) <= FIXED_BY_WEIGHTS and rng.random() < 0.3
    opened = "each" if by_weights else rng.choice(("one", "each", "each", "baked"))
    batch = None if by_weights else rng.choice((1, 1, 2, None, None))
    chunk = bool(updates) and updates[0] in CHUNKED and rng.random() < 0.5
    chunk &= dress not in ("shown", "not returned") and (language == "English" or not {*FILLED} & {*updates})
    g = Graph(rng, names, batch=batch, opened=opened, chunk=3 if chunk else 1, by_weights=by_weights)
    g.dress = dress
    plain = language == "English" and not dress and not data_pairs
    known = plain and set(updates) <= EVIDENT and mode in ("conventional", "other language")
    g.defaults = plain and (mode == "conventional" or known) and g.chance(0.15)
    if chunk and set(updates) <= {*RECURRENT} and g.chance(0.3) and not dress:
        g.open_letters.add("T")
    signal, order = read_frame(g, chunk)
    read = signal
    if g.chance(0.4) or mode != "conventional":
        signal = g.op("Tanh", g.op("MatMul", signal[0], g.weight(4, 4))), signal[1]
    for extra in extras:
        signal = before(g, extra, signal)
    for update in updates:
        signal = UPDATES[update](g, signal)
        if mode != "conventional" or g.chance(0.4):
            signal = g.op("Tanh", g.op("MatMul", signal[0], g.weight(4, 4))), signal[1]
    for extra in extras:
        after(g, extra, signal, read, order)
    wanted = rng.choice((2, 4, 4))
    g.size["Y"] = wanted
    direct = mode == "conventional" and wanted == 4 and g.chance(0.3)
    y = g.frame(signal) if direct else g.linear(g.frame(signal), 4, wanted)
    shown = g.order("BY")
    g.result(g.turn(y, "BY", shown), shown)
    exchanged = known and opened != "baked" and not data_pairs and g.chance(0.4) and g.exchange()
    proto = g.proto()
    inputs = len(g.inputs) - len(g.pairs)
    conventional = mode == "conventional" and not data_pairs and (bool(updates) or inputs == 1)
    conventional &= language == "English" and not dress
    shown = set(updates) <= EVIDENT and (inputs == 1 or (names.natural and set(extras) <= set(PLAIN_EXTRAS)))
    return Case(
        seed=seed,
        proto=proto,
        truth={given: new for given, (new, _) in g.pairs.items()},
        conventional=conventional and not exchanged,
        exchanged=exchanged,
        first=g.first,
        evident=conventional or (inputs == 1 if data_pairs else shown),
        updates=updates,
        names="conventional, data too" if data_pairs else mode,
        extras=extras,
        sizes=f"batch {batch or opened}" + ", by weights" * by_weights + ", open time" * ("T" in g.open_letters),
        graph=g,
        dress=dress,
        language=language,
        compiles=g.compiles,
        growing=any("P" in order for _, order in g.pairs.values()),
        ports=g.ports,
    )
