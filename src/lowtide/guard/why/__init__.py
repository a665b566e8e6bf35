"""Why a job died: evidence is gathered, then judged.

`gather`, `read_session` and `read_kernel_log` read files; `evidence` holds plain values; `verdict.judge` is
pure: proofs first, then signs, else it is unknown.
"""
