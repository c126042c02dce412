"""What bearcat answers to fixed inputs: numbers, states, decisions and exit statuses, without prose.

`results/commands.json` and `results/training.json` were made on v0.3, the commit before the first cut
(docs/upgrade.md), and are made anew only where a change of behaviour is meant and explained.

    python -m tests.golden         # lists what differs, bit for bit; tests/test_golden.py allows for other processors
    python -m tests.golden make    # writes the results anew

What changed on purpose since v0.3 was written in value by value; the commit that changed a value says why.
"""
