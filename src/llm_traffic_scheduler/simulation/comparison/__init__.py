"""Control laws ranked without favour: the same traffic for all, settings in hindsight for the others.

    result = study(Plan(shapes=("steady", "cv3"), seeds=1, span=600.0, engines=("A100",), thin=True), progress_bar)
    print(study_text(result, reach(result)))

`examples/compare_policies.py` is the door for people. The picture is drawn by `comparison.picture`, which needs
matplotlib: `pip install 'llm-traffic-scheduler[simulation]'`. Good for ranking policies, not for absolute GPU figures.
"""

from .curves import GRID, Comparison, Curve, Point, compare
from .export import study_json
from .families import TARGETS, Candidate, Room, candidates
from .instances import ENGINES, HEADLINE, SHAPES, Instance, Shape, shapes_in
from .losses import Loss, losses
from .reach import OPPONENTS, Line, Opponent, against, reach
from .study import ArmResult, Plan, Study, study
from .text import study_text
from .trials import Figures, Trial, run_trial

__all__ = [
    "ENGINES",
    "GRID",
    "HEADLINE",
    "OPPONENTS",
    "SHAPES",
    "TARGETS",
    "ArmResult",
    "Candidate",
    "Comparison",
    "Curve",
    "Figures",
    "Instance",
    "Line",
    "Loss",
    "Opponent",
    "Plan",
    "Point",
    "Room",
    "Shape",
    "Study",
    "Trial",
    "against",
    "candidates",
    "compare",
    "losses",
    "reach",
    "run_trial",
    "shapes_in",
    "study",
    "study_json",
    "study_text",
]
