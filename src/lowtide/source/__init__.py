"""Documents out of text, JSONL, Parquet and Arrow files.

Enters: paths, folders, globs (`find_inputs`), and how to read them (`ReadSettings`).
Leaves: blocks of UTF-8 text, each document followed by a delimiter, each block with the cursor to resume
        from (`read_blocks`); and the places where a document may be cut without changing its tokens
        (`last_safe_cut`).
Costs:  a few blocks of memory, plus the largest thing that cannot be cut (`document_limit_bytes`); for
        plain text with a literal separator hardly more time than copying.

    find_inputs.py    which files, of which kind; which are skipped, and why
    recognise.py      what is not text, by its first bytes
    stream.py         read_blocks: from inputs to blocks; the reader of each format
    blocks.py         block, cursor, settings
    parts.py          a file, or its two parts around the tail split
    read_text.py      read_jsonl.py  read_parquet.py  read_arrow.py    one format each
    examples/         rows that are conversations, through a template
    separators.py     how documents lie in a text file
    rows.py           rows in pieces: joined where short, cut where long
    columns.py        Arrow columns: which holds the text, and its values by their buffers
    arrow_messages.py parquet_footer.py  parquet_pages.py  thrift.py   how much memory a file will take
    arrow_memory.py   what Arrow holds while it reads
    byte_stream.py    files, compressed or not, through a window
    utf8.py           is it UTF-8, where not
    safe_cuts.py      where a document may be cut
    hold_out.py       which documents are kept for validation
    sample.py         short samples from all over the inputs
    find_place.py     in which file and line a text stands, for an error
"""
