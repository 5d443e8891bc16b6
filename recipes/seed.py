"""The seed experiment in one file: the whole algorithm, top to bottom, with nothing but torch.

    python recipes/seed.py

This is the door for reading; ``assay train recipes/seed.toml`` is the door for use. The two share no code, and a
test asserts that they take the same steps and end with the same numbers. What is left out here: evidence, resume,
the report, and sampled evaluation. Deviations from "plain REINFORCE", all on purpose:

1. The baseline leaves the response's own return out (Kool et al. 2019). A mean over the whole group would shrink the
   gradient by (G - 1) / G.
2. KL to the reference is inside the detached return. The same k1 term in the loss would have expected gradient zero.
3. When every advantage is exactly zero the optimizer does not step: Adam's momentum would move the weights without
   evidence.
4. Random numbers are a function of (seed, stream, step, problem, sample), so no draw depends on what was drawn before.
"""

import copy
import itertools
import math

import torch
from torch import nn
from torch.nn import functional as F

SEED, BETA = 29, 0.03
WARMUP_STEPS, WARMUP_RATE = 40, 0.006
RL_STEPS, RL_RATE = 100, 0.0015
PROBLEMS, BATCH, GROUP = 20, 5, 8
WIDTH, HEADS, HIDDEN = 16, 2, 32
DATA, INIT, ROLLOUT = 0, 1, 2  # random streams
SYMBOLS = "0123456789+×="


# --- random numbers with an address ---


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x32-10 (Salmon et al. 2011): four 32-bit words of counter and two of key give four random words."""
    (a, b, c, d), (k0, k1) = counter, key
    for _ in range(10):
        left, right = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (right >> 32) ^ b ^ k0, right & 0xFFFFFFFF, (left >> 32) ^ d ^ k1, left & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return [a, b, c, d]


def uniforms(stream: int, count: int, step: int = 0, problem: int = 0, sample: int = 0) -> list[float]:
    """``count`` numbers in [0, 1) at one address, two from each block of four words."""
    numbers: list[float] = []
    for block in range((count + 1) // 2):
        a, b, c, d = philox([block, sample, problem, step], [SEED, stream])
        numbers += [((high >> 5) * 2**26 + (low >> 6)) / 2**53 for high, low in ((a, b), (c, d))]
    return numbers[:count]


# --- the task: a op b op c =, left to right, modulo 10; the response is both intermediate and final digit ---


def answer(prompt: str) -> list[int]:
    a, first, b, second, c, _ = list(prompt)
    middle = (int(a) + int(b) if first == "+" else int(a) * int(b)) % 10
    return [middle, (middle + int(c) if second == "+" else middle * int(c)) % 10]


def draw_problems() -> tuple[list[str], list[str]]:
    digits, operations = "0123456789", "+×"
    every = ["".join(parts) for parts in itertools.product(digits, operations, digits, operations, digits, "=")]
    order = sorted(range(len(every)), key=lambda number: uniforms(DATA, 1, problem=number))
    drawn = [every[number] for number in order[: 2 * PROBLEMS]]
    return drawn[:PROBLEMS], drawn[PROBLEMS:]


def tokens(prompts: list[str]) -> torch.Tensor:
    return torch.tensor([[SYMBOLS.index(symbol) for symbol in prompt] for prompt in prompts])


# --- the policy: one pre-norm block, 17 parameter tensors ---


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(13, WIDTH), nn.Embedding(7, WIDTH)
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention_in, self.attention_out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feedforward_norm = nn.LayerNorm(WIDTH)
        self.feedforward_in, self.feedforward_out = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.final_norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10, bias=False)
        with torch.no_grad():
            for number, (name, parameter) in enumerate(self.named_parameters()):
                if parameter.ndim == 1:
                    parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
                else:
                    scale = 1.0 if "embedding" in name else 1 / math.sqrt(3 * parameter.shape[1])
                    u = torch.tensor(uniforms(INIT, parameter.numel(), problem=number), dtype=torch.float64)
                    parameter.copy_(
                        (scale * torch.special.ndtri((u + 2.0**-54).clamp(max=1 - 2.0**-53))).view_as(parameter)
                    )

    def forward(self, read: torch.Tensor) -> torch.Tensor:
        x = self.token_embedding(read) + self.position_embedding.weight[: read.shape[1]]
        q, k, v = self.attention_in(self.attention_norm(x)).chunk(3, dim=-1)
        split = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*split, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.attention_out(mixed)
        x = x + self.feedforward_out(F.gelu(self.feedforward_in(self.feedforward_norm(x)), approximate="tanh"))
        return self.head(self.final_norm(x))


def score(policy: Policy, prompt: torch.Tensor, response: torch.Tensor) -> torch.Tensor:
    """Log-probability of each two-token response: position t predicts token t + 1, so the last token is not read."""
    logp = policy(torch.cat([prompt, response[:, :1]], dim=1))[:, -2:].log_softmax(-1)
    return logp.gather(-1, response[..., None])[..., 0].sum(1)


@torch.no_grad()
def sample(policy: Policy, prompt: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Two consecutive forwards, one digit each, by inverting the cumulative distribution."""
    read = prompt
    for t in range(2):
        cumulative = policy(read)[:, -1].log_softmax(-1).exp().double().cumsum(-1)
        digit = torch.searchsorted(cumulative, u[:, t, None] * cumulative[:, -1:], right=True).clamp(max=9)
        read = torch.cat([read, digit], dim=1)
    return read[:, -2:]


@torch.no_grad()
def success(policy: Policy, prompts: list[str]) -> float:
    """Exact: the mean probability of the right response."""
    exact = copy.deepcopy(policy).double()
    return float(score(exact, tokens(prompts), torch.tensor([answer(p) for p in prompts])).exp().mean())


# --- the experiment ---


def update(policy: Policy, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> float:
    """One guarded step; returns the gradient's norm before clipping."""
    optimizer.zero_grad()
    loss.backward()
    for name, parameter in policy.named_parameters():
        if parameter.grad is None or not parameter.grad.isfinite().all():
            raise ArithmeticError(f"the gradient of {name} is missing or not finite")
    norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def run() -> tuple[dict[str, tuple[float, float]], list[dict[str, float]]]:
    """Return exact success on train and test at three points, and one record an RL step."""
    torch.set_num_threads(1)
    train, test = draw_problems()
    prompts, answers = tokens(train), torch.tensor([answer(prompt) for prompt in train])
    policy = Policy()
    points = {"random initialisation": (success(policy, train), success(policy, test))}

    # Warm-up: the mean over problems of -log p of the full response, the sum over its two tokens and not their mean.
    optimizer = torch.optim.AdamW(policy.parameters(), lr=WARMUP_RATE, weight_decay=0.0, fused=True)
    for _ in range(WARMUP_STEPS):
        update(policy, optimizer, -score(policy, prompts, answers).mean())
    points["after warm-up"] = (success(policy, train), success(policy, test))

    # The same snapshot is the frozen reference and the "before RL" point. The optimizer is a fresh one.
    reference = copy.deepcopy(policy).requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=RL_RATE, weight_decay=0.0, fused=True)
    history = []
    for step in range(RL_STEPS):
        batch = [(step * BATCH + i) % PROBLEMS for i in range(BATCH)]
        rows = [(problem, number) for problem in batch for number in range(GROUP)]
        u = torch.tensor([uniforms(ROLLOUT, 2, step, problem, number) for problem, number in rows], dtype=torch.float64)
        prompt = prompts[[problem for problem, _ in rows]]
        response = sample(policy, prompt, u)

        reward = torch.tensor([float(r == answer(train[p])) for r, (p, _) in zip(response.tolist(), rows, strict=True)])
        logp = score(policy, prompt, response)
        returns = (reward - BETA * (logp - score(reference, prompt, response))).detach()
        groups = returns.view(BATCH, GROUP)
        groups = groups - groups.amin(1, keepdim=True)  # changes nothing, and makes a constant group exactly zero
        advantage = groups - (groups.sum(1, keepdim=True) - groups) / (GROUP - 1)

        norm = 0.0
        if (advantage != 0).any():
            norm = update(policy, optimizer, -(advantage.flatten() * logp).mean())
        history.append({"strict_reward": float(reward.mean()), "return": float(returns.mean()), "grad_norm": norm})
    points["after RL"] = (success(policy, train), success(policy, test))
    return points, history


if __name__ == "__main__":
    for name, (on_train, on_test) in run()[0].items():
        print(f"{name:22} train {on_train:7.2%}   test {on_test:7.2%}")
