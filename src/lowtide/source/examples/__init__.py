"""Chat and instruction examples: rows become text by a template, with a loss mask over what is learnt.

Enters: rows of JSONL, Parquet or Arrow with messages, prompt and completion, or instruction and output.
Leaves: pieces of block text, with the byte spans that a model is to learn (`Piece.learnt`).
Costs:  some Python for every example; built-in templates about a tenth of a Jinja template's time.

    settings.py       what kind of examples, which columns, what is learnt
    turns.py          a row as turns of a conversation, or why it is not one
    marks.py          names of special tokens: private marks where the template wrote them, text in contents
    token_names.py    `bos_token`, `eos_token`: what a tokenizer's settings call its special tokens
    templates.py      load_template, parse_columns, keep_template
    built_in.py       built-in templates, fast, and the Jinja text of each
    render_apart.py   a Jinja template, rendered in a process of its own
    render_protocol.py the messages between the two processes
    render_child.py   that process: behind a memory fence, with a limit on its CPU time
    jinja_template.py a template in Hugging Face's convention, in that process, in a sandbox
    piece_builder.py  examples one behind the other, until they make a piece
    example_columns.py rows out of Arrow columns
    read_examples.py  rows out of each format, through the template, into pieces
"""
