"""Chat and instruction examples: rows become text by a template, with the learnt part marked.

Enters: rows of JSONL, Parquet or Arrow with messages, prompt and completion, or instruction and output.
Leaves: pieces of block text, with the byte spans that a model is to learn (`Piece.learnt`).
Costs:  some Python for every example; built-in templates about a tenth of a Jinja template's time.

    settings.py       what kind of examples, which columns, what is learnt
    marks.py          private spellings: of special tokens, and of where learning begins and ends
    special_names.py  names of special tokens: to marks where the template wrote them, text in contents
    turns.py          a row as turns of a conversation, or why it is none
    templates.py      load_template, parse_columns
    built_in.py       built-in templates, fast, and the Jinja text of each
    render_apart.py   a Jinja template, rendered in a process of its own
    render_protocol.py what is said between the two
    render_child.py   that process: behind a memory fence, with a limit on its time
    jinja_template.py a template in Hugging Face's convention, in that process
    sandbox.py        what such a template can reach
    token_names.py    `bos_token`, `eos_token`: what a tokenizer's settings call its special tokens
    keep_template.py  a dataset's template as its model keeps it
    sheet.py          examples laid one behind the other, until they make a piece
    example_columns.py rows out of Arrow columns
    read_examples.py  rows out of each format, through the template, into pieces
"""
