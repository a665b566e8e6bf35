"""Documents out of text, JSONL, Parquet and Arrow files.

Enters: paths, folders, globs (`find_inputs`), and how to read them (`ReadSettings`).
Leaves: blocks of UTF-8 text, each document followed by a delimiter, each block with the cursor to go on
        from (`read_blocks`); and the places where a document may be cut without changing its tokens
        (`last_safe_cut`).
Costs:  a few blocks of memory, plus the largest thing that cannot be cut (`document_limit_bytes`); for
        plain text with a literal separator hardly more time than copying.

    find_inputs.py    which files, of which kind
    skipped.py        which not, and why
    recognise.py      what is not text, by its first bytes
    stream.py         read_blocks: the way through the room
    blocks.py         block, cursor, settings
    parts.py          a file, or its two parts around the tail split
    read_text.py      read_jsonl.py  read_parquet.py  read_arrow.py    one format each
    json_lines.py     windows of whole lines, for text and for examples
    examples/         rows that are conversations, through a template
    separators.py     how documents lie in a text file
    scan_ahead.py     is a long document valid to its end
    rows.py           columns.py    what the row formats share
    arrow_messages.py parquet_footer.py  parquet_pages.py  delta_lengths.py    how much memory a file will take
    byte_stream.py    files, compressed or not, and a window over them
    utf8.py           is it UTF-8, where not
    safe_cuts.py      where a document may be cut
"""
