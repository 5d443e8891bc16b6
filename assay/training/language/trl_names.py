"""TRL's names beside a recipe's: what an unknown key should have been, and a table of the documentation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Counterpart:
    """What a recipe has for a name of TRL 1.16's GRPOConfig, RLOOConfig or ModelConfig.

    Attributes:
        here: the settings to write, dotted; none where there is nothing of the kind.
        differs: what the meaning is here, or why there is nothing; empty where the meaning is TRL's.
    """

    here: tuple[str, ...] = ()
    differs: str = ""


_ALGORITHM = ("rl.algorithm",)
_SIZE = ("rl.problems_per_step", "policy.token_budget")
_VLLM_WEIGHT = ("rl.algorithm", "rl.level", "rl.weight_low", "rl.weight_high")
_ONE_NAME = "the advantage, the ratio and the average over tokens are chosen together, by one name"
_NO_CORRECTION_IN_PLACE = (
    "tis cuts the weight off and mis leaves it out, both of a leave-one-out estimator, at either level; no other "
    "algorithm corrects"
)
_ONE_REWARD = "one reward; a function of yours can add several up"
_NO_OTHER_REFERENCE = "the reference never moves, and a digest says so at every save"
_NO_DROPOUT = "dropout is always off: sampler and scorer would part"

TRL_NAMES: dict[str, Counterpart] = {
    # the same name
    "seed": Counterpart(("seed",), "addresses every random number, so that a response does not depend on its batch"),
    "save_steps": Counterpart(("save_steps",), "steps are batches of responses; the last checkpoint alone is kept"),
    "dtype": Counterpart(("policy.dtype",), "float32, bfloat16 or float64, by name; never the file's own"),
    "lora_alpha": Counterpart(("policy.lora_alpha",)),
    "gradient_checkpointing": Counterpart(("policy.gradient_checkpointing",), "off where absent"),
    "num_generations": Counterpart(("rl.num_generations",)),
    "num_iterations": Counterpart(
        ("rl.num_iterations",),
        "every iteration is one update on the whole batch, and an algorithm without ratios refuses it",
    ),
    "learning_rate": Counterpart(("rl.learning_rate",)),
    "weight_decay": Counterpart(("rl.weight_decay",)),
    "max_grad_norm": Counterpart(("rl.max_grad_norm",)),
    "lr_scheduler_type": Counterpart(("rl.lr_scheduler_type",), "constant where absent; no warm-up of the rate"),
    "max_completion_length": Counterpart(("rl.max_completion_length",)),
    "temperature": Counterpart(("rl.temperature",)),
    "top_k": Counterpart(("rl.top_k",), "scoring replays the cut; TRL scores over all tokens"),
    "top_p": Counterpart(("rl.top_p",), "scoring replays the cut; TRL scores over all tokens"),
    "beta": Counterpart(
        ("rl.beta", "rl.kl"),
        "kl says where it enters: reward is RLOOTrainer's, k3_ratio_loss GRPOTrainer's, k3_loss GRPOTrainer's with "
        "use_bias_correction_kl = false, at num_iterations = 1 for both",
    ),
    "epsilon": Counterpart(
        ("rl.epsilon",),
        "refused at num_iterations = 1, where every ratio is 1; the ratio is a token's, and a whole response's in "
        "RLOOTrainer",
    ),
    "epsilon_high": Counterpart(("rl.epsilon_high",), "likewise; cispo's is rl.weight_high, the same number"),
    "delta": Counterpart(("rl.delta",), "for the algorithm dual_clip alone"),
    "mask_truncated_completions": Counterpart(
        ("rl.mask_truncated_completions",),
        "a response that was cut off leaves its group as well as the loss; in TRL its reward stays in the group's mean",
    ),
    # other names
    "model_name_or_path": Counterpart(("model",)),
    "dataset_name": Counterpart(("data",), "a file, gym:NAME or module:function; nothing is fetched"),
    "reward_funcs": Counterpart(("reward",), _ONE_REWARD),
    "reward_weights": Counterpart(("reward",), _ONE_REWARD),
    "multi_objective_aggregation": Counterpart(("reward",), _ONE_REWARD),
    "reward_clip_range": Counterpart(("reward",), "rewards are not clipped; a function of yours can"),
    "loss_type": Counterpart(
        _ALGORITHM,
        f"{_ONE_NAME}: grpo, cispo; dr_grpo, which never scales by the group's spread; dapo, which also drops groups "
        "of one reward and clips at 0.28",
    ),
    "scale_rewards": Counterpart(
        _ALGORITHM, f"{_ONE_NAME}: dr_grpo and mean_centred do not scale, grpo does, with eps = 1e-6 where TRL has 1e-4"
    ),
    "importance_sampling_level": Counterpart(_ALGORITHM, f"{_ONE_NAME}: gspo's ratio is that of a whole response"),
    "normalize_advantages": Counterpart(_ALGORITHM, f"{_ONE_NAME}: reinforce_pp_baseline whitens over the batch"),
    "entropy_coef": Counterpart(
        ("rl.entropy",), "averaged as the algorithm averages tokens, not always over all tokens"
    ),
    "use_bias_correction_kl": Counterpart(("rl.kl",), "k3_ratio_loss is with the correction, k3_loss without"),
    "max_prompt_length": Counterpart(("policy.max_prompt_length",), "a longer prompt is an error and never cut"),
    "max_steps": Counterpart(("rl.steps",), "batches of responses, each of num_iterations optimizer steps"),
    "num_train_epochs": Counterpart(("rl.steps",), "a number of steps; the plan says how often each problem comes up"),
    "per_device_train_batch_size": Counterpart(
        _SIZE, "problems a step, each with num_generations responses; memory is bounded by tokens"
    ),
    "gradient_accumulation_steps": Counterpart(
        _SIZE, "one update a batch, cut into parts by tokens; no result depends on the cut but by rounding"
    ),
    "generation_batch_size": Counterpart(("rl.problems_per_step", "policy.decode_rows"), "likewise"),
    "steps_per_generation": Counterpart(("rl.num_iterations",), "every update is on the whole batch"),
    "bf16": Counterpart(("policy.dtype",), 'dtype = "bfloat16"'),
    "fp16": Counterpart(("policy.dtype",), "no float16, whose gradients need scaling; bfloat16 needs none"),
    "torch_dtype": Counterpart(("policy.dtype",)),
    "lora_r": Counterpart(("lora",)),
    "use_peft": Counterpart(("lora",), "a rank above 0"),
    "use_vllm": Counterpart(("policy.engine",), 'engine = "vllm"'),
    "vllm_importance_sampling_correction": Counterpart(_VLLM_WEIGHT, _NO_CORRECTION_IN_PLACE),
    "vllm_importance_sampling_mode": Counterpart(_VLLM_WEIGHT, _NO_CORRECTION_IN_PLACE),
    "vllm_importance_sampling_cap": Counterpart(("rl.weight_high",), "for tis and mis"),
    "vllm_importance_sampling_clip_max": Counterpart(("rl.weight_high",), "for tis and mis"),
    "vllm_importance_sampling_clip_min": Counterpart(("rl.weight_low",), "for mis"),
    "eval_steps": Counterpart(("evaluation.every",), "RL steps between greedy evaluations on the test problems"),
    "num_generations_eval": Counterpart(("evaluation.samples",)),
    "report_to": Counterpart(("tracking.mirrors",), "metrics.jsonl is always written"),
    "project": Counterpart(("tracking.project",)),
    # nothing of the kind
    "min_p": Counterpart((), "top_k and top_p are the cuts that scoring replays"),
    "repetition_penalty": Counterpart((), "it draws from another distribution than the one that is trained"),
    "generation_kwargs": Counterpart((), "what is drawn must be what is scored"),
    "warmup_steps": Counterpart((), "no warm-up of the learning rate; [warmup] is supervised steps before RL"),
    "warmup_ratio": Counterpart((), "no warm-up of the learning rate; [warmup] is supervised steps before RL"),
    "logging_steps": Counterpart((), "every step is logged"),
    "log_completions": Counterpart((), "every evaluated response is in samples.jsonl"),
    "shuffle_dataset": Counterpart((), "the seed draws the split and its order, and steps go through it in a cycle"),
    "remove_unused_columns": Counterpart((), "every column is handed to the reward function"),
    "disable_dropout": Counterpart((), _NO_DROPOUT),
    "lora_dropout": Counterpart((), _NO_DROPOUT),
    "sync_ref_model": Counterpart((), _NO_OTHER_REFERENCE),
    "ref_model_mixup_alpha": Counterpart((), _NO_OTHER_REFERENCE),
    "ref_model_sync_steps": Counterpart((), _NO_OTHER_REFERENCE),
    "optim": Counterpart((), "AdamW"),
    "trust_remote_code": Counterpart((), "no code is run that comes with a model"),
    "output_dir": Counterpart(
        (), "the run directory is --output of the command line, and an existing one is never touched"
    ),
}


def _instead(made: Counterpart) -> str:
    written = " and ".join(made.here)
    if not made.here:
        return f"there is none here: {made.differs}"
    return f"write {written}" + (f" ({made.differs})" if made.differs else "")


INSTEAD = {name: _instead(made) for name, made in TRL_NAMES.items()}
"""What to write for an unknown key, by its last part."""
