"""What every test may count on."""

import signal

# Started in the background of a script, a process ignores Ctrl-C, and so do its children: tests of it need the default.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
