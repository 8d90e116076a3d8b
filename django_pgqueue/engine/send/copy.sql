-- Insert many messages. Columns without any value are left out, which saves checks of their domain.
COPY {message} ({columns}) FROM STDIN
