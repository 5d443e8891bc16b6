"""The command line. Exit codes: 0 holds, 1 disagrees, 2 could not run.

Each command is a frozen dataclass: its fields are the arguments, calling it does the work. Heavy packages are
imported by the command that needs them, so that ``assay --help`` answers at once.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import tyro
from pydantic import BaseModel
from tyro.conf import Positional, UseAppendAction, arg, subcommand

from assay import __version__
from assay.errors import AssayError, ConfigError
from assay.evidence.files import printable
from assay.training.config import Recipe, build_recipe, read_settings
from assay.verdicts import Claim, Verdict, exit_code, overall

if TYPE_CHECKING:
    from rich.console import Console

    from assay.runs.language.train import LanguageRun, Watch
    from assay.training.language.recipe import LanguageRecipe
    from assay.tree.world import World


OptionalPath = Annotated[Path | None, arg(constructor=Path, metavar="PATH", help_behavior_hint="")]
OptionalCount = Annotated[int | None, arg(constructor=int, metavar="INT", help_behavior_hint="")]
Flag = Annotated[bool, arg(help_behavior_hint="")]


def _settings_class(model: type[BaseModel]) -> type:
    """Return a plain dataclass with a recipe section's fields and help, whose values nobody has validated yet.

    The command line fills it; the recipe validates it, with messages that are the same wherever a setting comes from.
    """
    fields: list[tuple[str, Any, Any]] = []
    for name, info in model.model_fields.items():
        kind: Any = info.annotation
        if get_origin(kind) is dict:
            continue  # a table of free keys is for the file
        if info.is_required():
            kind = kind | None
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            section = _settings_class(kind)
            fields.append((name, section, field(default_factory=section)))
        else:
            default = None if info.is_required() else info.default
            fields.append((name, Annotated[kind, arg(help=info.description)], field(default=default)))
    return make_dataclass(model.__name__, fields, frozen=True, namespace={"__doc__": model.__doc__})


Settings: Any = _settings_class(Recipe)


def _filled(kind: type, values: Mapping[str, Any]) -> Any:
    """Return a settings class with some values; what it does not know is left out."""
    kinds = {name: entry.type for name, entry in kind.__dataclass_fields__.items()}  # type: ignore[attr-defined]
    known = {name: value for name, value in values.items() if name in kinds}
    return kind(
        **{
            name: _filled(kinds[name], value)
            if isinstance(value, dict)
            else tuple(value)
            if isinstance(value, list)
            else value
            for name, value in known.items()
        }
    )


@dataclass(frozen=True)
class Train:
    """Train the seed experiment into a new directory, evaluate it, and write its report.

    A recipe with a model, or --model NAME, trains a language model instead: assay train --model NAME --help."""

    recipe: Positional[
        Annotated[Path | None, arg(constructor=Path, metavar="[RECIPE.toml]", help_behavior_hint="")]
    ] = None
    """A TOML recipe; without one, the seed experiment."""
    output: OptionalPath = None
    """The new run directory (default: runs/seed-TIME). An existing one is never touched."""
    resume: OptionalPath = None
    """Continue this interrupted run instead, with its own settings."""
    settings: Annotated[Settings, arg(name="")] = field(default_factory=Settings)

    def __call__(self) -> int:
        recipe = self._recipe()
        if self.resume is not None and _is_language_run(self.resume):
            return _resume_language(self.resume)
        from assay.display import ProgressView, show_summary
        from assay.runs.train import resume, train

        console = _console()
        with ProgressView(console) as view, _stop_on_signal() as stopping:
            if self.resume is not None:
                run = resume(self.resume, on_start=view.on_start, on_step=view.on_step, stopping=stopping)
            else:
                run = train(recipe, self.output, on_start=view.on_start, on_step=view.on_step, stopping=stopping)
        show_summary(console, run.results)
        console.print(f"report: {run.report}", highlight=False, markup=False, soft_wrap=True)
        return 0

    def _recipe(self) -> Recipe:
        """Return the settings asked for. A run that is continued has its own, which cannot be changed."""
        if self.resume and (self.recipe or self.output or self.settings != Settings()):
            raise ConfigError(
                f"--resume {self.resume}: a run goes on with its own settings; give no recipe, --output or setting"
            )
        return build_recipe(asdict(self.settings), place="command line")


def _language_settings() -> type:
    """Return the settings of a language recipe as options; the recipe's own module is imported only here."""
    from assay.training.language.recipe import LanguageRecipe

    return _settings_class(LanguageRecipe)


@dataclass(frozen=True)
class TrainLanguage:
    """Train a language model on verifiable rewards into a new directory, measure it, and write its report."""

    recipe: Positional[
        Annotated[Path | None, arg(constructor=Path, metavar="[RECIPE.toml]", help_behavior_hint="")]
    ] = None
    """A TOML recipe; every setting of it can be overridden."""
    output: OptionalPath = None
    """The new run directory (default: runs/language-TIME). An existing one is never touched."""
    resume: OptionalPath = None
    """Continue this interrupted run instead, with its own settings."""
    settings: Annotated[Any, arg(name="")] = None

    def __call__(self) -> int:
        from assay.training.language.recipe import build_language_recipe

        if self.resume is not None:
            raise ConfigError(
                f"--resume {self.resume}: a run goes on with its own settings; give no recipe, --output or setting"
            )
        read = {} if self.recipe is None else read_settings(self.recipe)
        given = _overlaid(read, asdict(self.settings))
        recipe = build_language_recipe(given, place=str(self.recipe or "command line"), base=Path.cwd())
        return _train_language(recipe, self.output)


def _overlaid(read: Mapping[str, Any], settled: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the options came to, with the keys of the file that no option has."""
    made = dict(settled)
    for name, value in read.items():
        if name not in made:
            made[name] = value
        elif isinstance(value, dict) and isinstance(made[name], dict):
            made[name] = _overlaid(value, made[name])
    return made


def _is_language_run(place: Path) -> bool:
    from assay.runs.kind import is_language_run

    return is_language_run(place)


def _train_language(recipe: LanguageRecipe, output: Path | None) -> int:
    from assay.runs.language.train import train_language

    return _watched(lambda watch: train_language(recipe, output, watch=watch))


def _resume_language(place: Path) -> int:
    from assay.runs.language.train import resume_language

    return _watched(lambda watch: resume_language(place, watch=watch))


def _watched(work: Callable[[Watch], LanguageRun]) -> int:
    """Carry out a language run under the eyes of a terminal, and say what it came to."""
    from assay.display_language import Spectator
    from assay.display_results import show_language_results

    console = _console()
    with Spectator(console) as spectator, _stop_on_signal() as stopping:
        run = work(spectator.watch(stopping))
    show_language_results(console, run.results, run.data["overlap"])
    console.print(f"report: {run.report}", highlight=False, markup=False, soft_wrap=True)
    return 0


@dataclass(frozen=True)
class Evaluate:
    """Reload a finished run's weights and measure them: exact success and KL, independent samples beside them."""

    output: Path
    """The run directory."""
    split: Annotated[str, arg(metavar="{train,test}")] = "test"
    """Which problems."""
    samples: OptionalCount = None
    """Independent samples at each point (default: the run's own number)."""
    json: Flag = False
    """Print a JSON record instead of a table."""

    def __call__(self) -> int:
        if _is_language_run(self.output):
            return self._language()
        from assay.display import show_evaluation
        from assay.runs.evaluate import evaluate

        made = evaluate(self.output, self.split, samples=self.samples)
        if self.json:
            _say(json.dumps(asdict(made), indent=1))
        else:
            show_evaluation(_console(), made)
        return 0

    def _language(self) -> int:
        from assay.display_results import show_language_evaluation
        from assay.runs.language.evaluate import evaluate_language

        console = _console()
        say = (lambda text: None) if self.json else (lambda text: console.print(text, highlight=False))
        made = evaluate_language(self.output, self.split, samples=self.samples, say=say)
        if self.json:
            _say(json.dumps(asdict(made), indent=1))
        else:
            show_language_evaluation(console, made.split, made.points, made.gains)
        return 0


@dataclass(frozen=True)
class Verify:
    """Check a run: intact (files as sealed), complete (one whole run), reproduced (numbers follow from the
    weights)."""

    directory: Positional[Path]
    """The run directory."""
    replay: Flag = False
    """Also train the same recipe again and compare."""
    json: Flag = False
    """Print a JSON record instead of lines."""

    def __call__(self) -> int:
        from assay.runs.verify import verify

        return _show_claims(list(verify(self.directory, replay=self.replay).claims), as_json=self.json)


@dataclass(frozen=True)
class Compare:
    """Compare two finished runs: settings, steps, probabilities, gradients, results. Exit code 0 when identical
    or close."""

    first: Positional[Path]
    """A run directory."""
    second: Positional[Path]
    """Another one."""
    json: Flag = False
    """Print a JSON record instead of a table."""

    def __call__(self) -> int:
        from assay.display import show_comparison
        from assay.runs.compare import compare

        made = compare(self.first, self.second)
        if self.json:
            record = {**asdict(made), "verdict": made.claim.verdict}
            _say(json.dumps(record, indent=1, default=str))
        else:
            show_comparison(_console(), made)
        return exit_code(made.claim.verdict)


@dataclass(frozen=True)
class Report:
    """Build a run's report from its files. A run is never changed: the page goes elsewhere, or is compared with
    the one there."""

    directory: Positional[Path]
    """The run directory."""
    to: OptionalPath = None
    """Write the page here; must not exist."""

    def __call__(self) -> int:
        from assay.runs.report import report

        _say(report(self.directory, self.to))
        return 0


@dataclass(frozen=True)
class Audit:
    """Check by exact enumeration that a gradient is the gradient of what it claims to ascend."""

    subject: Annotated[Positional[str], arg(metavar="[SUBJECT]", help_behavior_hint="")] = ""
    """What to audit. seed: the seed experiment's policy gradient, in all 17 tensors over all 100 trajectories.
    run: the sampler, batch, update and accumulation of a language run's own recipe, on a small model of its family.
    package.module:function: a loss, called with the parameters it names. Or a name that --list gives, such as
    assay.grpo, trl.grpo or trl.grpo_trainer."""
    directory: Annotated[Positional[Path | None], arg(constructor=Path, metavar="[DIR]", help_behavior_hint="")] = None
    """The run directory, after run."""
    names: Annotated[bool, arg(name="list", help_behavior_hint="")] = False
    """Print the subjects that have a name, and which of them can run here."""
    settings: Annotated[
        UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE", help_behavior_hint="")
    ] = ()
    """A setting of a subject that has a name; may be given several times."""
    check: Annotated[str | None, arg(constructor=str, metavar="NAME", help_behavior_hint="")] = None
    """Ask one of the fourteen invariants alone of a python function, by number or name: I4 of an advantage function,
    I10 of a pass@k, I12 of a seed scheme."""
    objective: Annotated[str | None, arg(constructor=str, metavar="SUM", help_behavior_hint="")] = None
    """What a loss is said to ascend, such as 'reward - 0.03*kl' (default: the subject's own, or reward)."""
    group_size: OptionalCount = None
    """Responses in a group (default: 4; 2 for a whole trainer and for batches of several prompts)."""
    prompts: int = 1
    """Groups in a batch: 1, or one of each problem of the world, for a loss that couples them."""
    advantage: Annotated[str | None, arg(constructor=str, metavar="MODULE:FUNCTION", help_behavior_hint="")] = None
    """What makes adv, called with the parameters it names (default: leave-one-out of the reward)."""
    world: str = "default"
    """Where to audit: a world's name, or a file that holds one."""
    off_policy: Flag = False
    """Draw the responses from an older policy, in the default world."""
    temperature: float = 1.0
    """Draw the responses at this temperature, while the policy is scored at 1."""
    top_k: int = 0
    """Draw only the likeliest tokens, so many (0: all), while the policy is scored over all."""
    top_p: float = 1.0
    """Draw only the likeliest tokens, of this mass together, while the policy is scored over all."""
    output: OptionalPath = None
    """Also write the full record as JSON here; must not exist."""
    json: Flag = False
    """Print the full record as JSON instead of lines."""

    def __call__(self) -> int:
        from assay.runs.directory import to_json, write_new

        if self.names:
            return self._list()
        if not self.subject:
            raise ConfigError("audit: say what to audit; assay audit --list names what there is")
        if self.directory is not None and self.subject != "run":
            raise ConfigError(
                f"audit {self.subject} {self.directory}: a directory comes after run, as in: audit run DIR"
            )
        whole = {"seed": self._seed, "run": self._run}
        ask = self._alone if self.check is not None else whole.get(self.subject, self._subject)
        record, claims, words = ask()
        if self.output is not None:
            write_new(self.output, to_json(record))
        if self.json:
            _say(json.dumps(record, indent=1, default=str))
            return exit_code(overall(claims))
        code = _show_claims(claims, as_json=False)
        for line in words:
            _say(line)
        return code

    def _list(self) -> int:
        from assay.audit.subjects import available

        for name, note in available().items():
            _say(f"{name:34} {note}".rstrip())
        return 0

    def _world(self) -> World:
        from assay.tree.saved import find_world
        from assay.tree.worlds import decoded

        if self.temperature <= 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"--temperature {self.temperature} --top-k {self.top_k} --top-p {self.top_p}: need a positive "
                "temperature, a top-k of 0 or more and a top-p in (0, 1]"
            )
        world = find_world(self.world, off_policy=self.off_policy)
        if (self.temperature, self.top_k, self.top_p) == (1.0, 0, 1.0):
            return world
        return decoded(world, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    def _refuse_other_than(self, *own: str) -> None:
        """Refuse an option that this subject would not read."""
        read = {"output", "json", "subject", "directory", *own}
        for name, entry in self.__dataclass_fields__.items():
            if name not in read and getattr(self, name) != entry.default:
                option = {"names": "list", "settings": "set"}.get(name, name.replace("_", "-"))
                raise ConfigError(f"audit {self.subject}: --{option} is for a loss and would do nothing")

    def _seed(self) -> tuple[dict[str, Any], list[Claim], list[str]]:
        self._refuse_other_than()
        from assay.audit.seed import audit, claims

        record = audit()
        return record, claims(record), [f"Not shown: {limit}" for limit in record["limits"]]

    def _run(self) -> tuple[dict[str, Any], list[Claim], list[str]]:
        self._refuse_other_than()
        if self.directory is None:
            raise ConfigError("audit run: name the run directory, as in: assay audit run runs/add")
        from assay.runs.language.audit import audit_run

        return audit_run(self.directory)

    def _alone(self) -> tuple[dict[str, Any], list[Claim], list[str]]:
        """Ask one invariant of a function that is all its check needs."""
        from assay.audit.invariants import find_check
        from assay.audit.subjects import load

        self._refuse_other_than("check")
        check = find_check(self.check or "")
        needed = [p.name for p in inspect.signature(check).parameters.values() if p.default is p.empty][1:]
        if needed:
            raise ConfigError(
                f"--check {self.check}: {check.__name__} also needs {', '.join(needed)}; call it from Python, as "
                f"assay.testing.assert_invariant({check.__name__!r}, ...)"
            )
        made = check(load(self.subject))
        words = [f"to mend it: {made.remedy}"] if made.remedy else []
        return {"verdict": made.verdict, "claims": [asdict(made)]}, [made], words

    def _subject(self) -> tuple[dict[str, Any], list[Claim], list[str]]:
        from assay.audit.losses import loss
        from assay.audit.subjects import find, find_trainer, load, named_trainers

        if self.group_size is not None and self.group_size < 2:
            raise ConfigError(f"--group-size {self.group_size}: a group needs at least 2 responses")
        if self.subject in named_trainers():
            self._refuse_other_than("objective", "group_size", "settings")
            trainer = find_trainer(self.subject, self.settings, group_size=self.group_size or 2)
            made = trainer.audit(self.objective)
            about = {name: getattr(trainer, name) for name in ("settings", "versions", "reaches", "misses")}
            words = [f"reaches: {trainer.reaches}", f"not reached: {trainer.misses}"]
            return {**made.record(), **about}, [*made.claims], [*made.in_words(), *words]

        report = loss(
            find(self.subject, self.settings),
            objective=self.objective,
            group_size=self.group_size or (4 if self.prompts == 1 else 2),
            prompts=self.prompts,
            advantage=None if self.advantage is None else load(self.advantage),
            world=self._world(),
        )
        return report.record(), [*report.claims], report.in_words()


Command = Train | TrainLanguage | Evaluate | Verify | Compare | Report | Audit


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"assay {__version__}")
        return 0
    return boundary(lambda: _parse(arguments or ["--help"])())


def entry() -> None:
    """Run as the ``assay`` console script."""
    sys.exit(main())


def boundary(work: Callable[[], int]) -> int:
    """Do some work and turn every failure into exit code 2: one line for what a user can mend, a traceback for
    a defect."""
    try:
        return work()
    except AssayError as error:
        print(f"assay: {printable(' '.join(str(error).split()))}", file=sys.stderr)
    except KeyboardInterrupt:
        print("assay: stopped at once; a run in training keeps its last checkpoint", file=sys.stderr)
    except Exception:
        traceback.print_exc()
        print("assay: this is a defect in assay, please report it with the lines above", file=sys.stderr)
    return exit_code(Verdict.COULD_NOT_RUN)


def _parse(arguments: list[str]) -> Command:
    """Return the command that the arguments spell, with a recipe's settings as the defaults of its own options."""
    file = _recipe_file(arguments)
    read = {} if file is None else read_settings(file)
    if "model" in read or any(argument.partition("=")[0] == "--model" for argument in arguments):
        return _tyro(arguments, TrainLanguage(settings=_language_defaults(file, read)))
    command = _tyro(arguments, Train(settings=Settings()))
    if isinstance(command, Train) and command.recipe is not None:
        recipe = build_recipe(read_settings(command.recipe), place=str(command.recipe))
        command = _tyro(arguments, Train(settings=_filled(Settings, recipe.model_dump())))
    return command


def _recipe_file(arguments: list[str]) -> Path | None:
    """Return the recipe that a train command names, if it can be read; whatever else is there is for the parser."""
    named = [argument for argument in arguments[1:] if argument.endswith(".toml") and not argument.startswith("-")]
    file = Path(named[0]) if arguments[:1] == ["train"] and named else None
    return file if file is not None and file.is_file() else None


def _language_defaults(file: Path | None, read: dict[str, Any]) -> Any:
    """Return the options of a language recipe as its file has them, with the file's paths found from where it lies.

    Raises:
        ConfigError: the file is a whole recipe, and not a sound one.
    """
    from assay.training.language.recipe import build_language_recipe
    from assay.training.language.sources import located

    base = Path.cwd() if file is None else file.resolve().parent
    if "model" in read and "data" in read:
        build_language_recipe(read, place=str(file), base=base)
    return _filled(_language_settings(), located(read, base))


def _tyro(arguments: list[str], train: Train | TrainLanguage) -> Command:
    commands: Any = (
        Annotated[type(train), subcommand("train", default=train)]
        | Annotated[Evaluate, subcommand("evaluate")]
        | Annotated[Verify, subcommand("verify")]
        | Annotated[Compare, subcommand("compare")]
        | Annotated[Report, subcommand("report")]
        | Annotated[Audit, subcommand("audit")]
    )
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            made: Command = tyro.cli(
                commands,
                args=arguments,
                prog="assay",
                description="Train by reinforcement learning from verifiable rewards, and prove what each update does.",
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except SystemExit as done:
        if not done.code:
            raise
        raise ConfigError(_one_line(complaint.getvalue())) from None
    return made


def _one_line(complaint: str) -> str:
    """Return the substance of an argument parser's boxed message, without its title and its pointers to help.

    The box is drawn with line-drawing characters, or with hyphens where the output cannot encode those.
    """
    text = re.sub(r"\x1b\[[0-9;]*m|[│╮╰╯]", "", complaint)
    _title, *parts = re.split(r"[─-]{8,}", text)
    lines = [" ".join(part.split()) for part in parts]
    return "; ".join(line for line in lines if line and not line.startswith(("For full help", "Argument help")))


def _say(text: object) -> None:
    """Print a line at once; a reader that has gone away changes neither work nor verdict."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        from assay.display import silence_stdout

        silence_stdout()


def _console() -> Console:
    from assay.display import PatientConsole

    return PatientConsole()


def _show_claims(claims: list[Claim], *, as_json: bool) -> int:
    verdict = overall(claims)
    if as_json:
        _say(json.dumps({"verdict": verdict, "claims": [asdict(claim) for claim in claims]}, indent=1))
    else:
        from assay.display import show_claims

        show_claims(_console(), claims)
    return exit_code(verdict)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C or SIGTERM ask for a stop at the next step boundary; a second Ctrl-C stops at once."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
