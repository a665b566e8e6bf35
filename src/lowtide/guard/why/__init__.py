"""Why a job died. `stages/why.py` gathers evidence, `verdict.judge` judges it, as a pure function.

`kernel_log` and `death_texts` read what the kernel and the program wrote, `allocations` the sizes in it;
`evidence` holds plain values. `rules` is the table of rules, in order; `causes` is the table of what each cause
means to a user.
"""
