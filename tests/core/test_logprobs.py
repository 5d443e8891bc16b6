import torch

from assay.core.logprobs import response_logp, shifted_input


def test_each_logp_belongs_to_the_token_being_predicted():
    """Logits that put all mass on (input token + 1) mod 5: only a response that counts up by one is certain."""
    prompt, response = torch.tensor([[1, 2]]), torch.tensor([[3, 4, 0]])
    read = shifted_input(prompt, response)
    assert read.tolist() == [[1, 2, 3, 4]]
    logits = torch.nn.functional.one_hot((read + 1) % 5, 5).double() * 100
    assert torch.allclose(response_logp(logits, response), torch.zeros(1, 3, dtype=torch.float64), atol=1e-12)
    off_by_one = response_logp(logits, torch.tensor([[4, 0, 1]]))
    assert float(off_by_one.max()) < -90


def test_logp_is_the_log_of_a_normalised_probability():
    logits = torch.randn(2, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    response = torch.tensor([[0, 3], [2, 2]])
    made = response_logp(logits, response)
    for b in range(2):
        for t in range(2):
            weights = logits[b, 4 + t].exp()
            assert abs(float(made[b, t]) - float((weights[response[b, t]] / weights.sum()).log())) < 1e-14
