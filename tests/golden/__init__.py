"""What bearcat answers to fixed inputs: numbers, states, decisions and exit statuses, without prose.

`results/commands.json` and `results/training.json` were made on v0.3, the commit before the first cut
(docs/upgrade.md), and are made anew only where a change of behaviour is meant and explained.

    python -m tests.golden         # lists what differs, bit for bit; tests/test_golden.py allows for other processors
    python -m tests.golden make    # writes the results anew

Changed on purpose since v0.3, value by value and without making the rest anew:

- Losses and logits of DANN, AT, CAT and their starred forms: the last digits (2e-13 of a number at most), since losses
  are functions of one run under torch.vmap, and gradients are added up in another order. Others are bit for bit as before.
- `diagnose by orders`: a data sheet's orders are given as the bearing (`--bearing bpfo=…,bpfi=…`), so `bearing` says
  them where it said nothing; every number is the same. `predict windows` went with `--by window`.
- `watch`: a confidence is that of `diagnose` on the last recording beside the baseline, no longer of pooled spectra, and
  stands beside a named fault only. Where a change is an alarm, prior odds are even. Every status and exit status is
  the same.
- Probabilities and confidences of recordings: three recordings in ten are taken to be faulty, no longer one in two. Each
  number is the old one with the odds of a fault times 3/7. In `watch IMS` a healthy bearing's 71 % is no longer named.
- One rule for alarms: `cannot tell` is never an alarm (`predict by CAT*` [1], `the general model on CWRU` [0] and [3];
  with the odds above `adapt by CAT*` [0] and `the general model` [1] are healthy), and an alarm by lines of an unknown
  bearing has the state "fault, type unclear" (`diagnose an unknown bearing` [0], [3], [4]).
- `diagnose without a bearing`: lines of any bearing are looked for, as with `--bearing unknown`, where nothing was
  diagnosed.
- What lines say alone (`physics`) is by the weights of the fusion, no longer by a second model: in `adapt simulated` [0]
  it is healthy where it could not tell, and the fault that fixes `fitted_rpm` is another in `diagnose CWRU` [0], `the
  general model on CWRU` [0] and the two commands at a wrong speed [0].
- `adapt by CAT*`, `predict by CAT*`: the model is that of the method asked for by name, no longer the unadapted one that
  is recommended. After four epochs it is refused, so that its healthy recordings are `check`; scores are the same.
"""
