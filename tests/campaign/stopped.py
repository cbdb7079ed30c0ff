"""``ucfl`` under torchrun, in processes that are stopped at chosen moments.

usage: stopped.py STOPS ARGUMENTS…, where STOPS is a JSON object of ranks and :class:`Stop`.
"""

import json
import os
import sys

from moments import Moments, Stop

from ucfl.cli import main

stops = json.loads(sys.argv[1])
sys.argv = ["ucfl", *sys.argv[2:]]
mine = stops.get(os.environ["RANK"])
if mine:
    Moments(Stop(**mine)).start()
main()
