-- Many messages, with only the columns that any of them has: each NULL of a domain is checked.
COPY {message} ({columns}) FROM STDIN
