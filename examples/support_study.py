"""SUPPORT: all that `support.py` and `make bench support` know about these data.

For data of your own, write such a file: ``python examples/support.py --study FILE.py``. SUPPORT is
from https://hbiostat.org/data (Vanderbilt University, CC BY 4.0), in the package SurvSet.
"""

import pandas as pd

NAME, SEED, K, SEVERAL_K = "support", 7, 4, [2, 3, 4, 5, 6]
PURPOSE = "Are there types of seriously ill adults by physiology on day 3, and who dies?"
#: Each column's name, least and greatest value, and unit; first what nearly every patient has.
FEATURES = """
age 18 110 years; meanbp 0 250 mmHg; hrt 0 320 /min; resp 0 100 /min; temp 30 44 °C;
wblc 0 250 10³/µl; crea 0 30 mg/dl; sod 100 190 mmol/l; scoma 0 100"""
MORE_FEATURES = """
pafi 0 1000 mmHg; alb 0 35 g/dl; bili 0 80 mg/dl; ph 6.5 8; glucose 0 1500 mg/dl;
bun 0 350 mg/dl; urine 0 12000 ml"""
OUTCOMES = {
    "died_60": {"kind": "binary", "unit": "1 = dead within 60 days"},
    "hospital_days": {
        "kind": "ordered",
        "unit": "days in hospital before the study",
        "edges": [2, 4, 8, 15],
    },
    "days": {"kind": "time", "unit": "days", "edges": [7, 30, 60, 180, 365], "event": "death"},
}
#: The column by which the hospitals' patients differ.
CASE_MIX, SEPSIS, CANCER = "dzgroup", "ARF/MOSF w/Sepsis", ["Lung Cancer", "Colon Cancer"]
UMOL = {"crea": ("µmol/l", 88.42)}  # the unit here, and how many of it are one of the session's
#: Patients; the groups that come more often, and by which factor; how the hospital writes its file.
HOSPITALS = {
    "aarhus": (2400, {}, {"units": UMOL, "decimal": ",", "names": {"age": "alder"}}),
    "basel": (1805, {SEPSIS: 3}, {"units": UMOL, "names": {"hrt": "puls", "wblc": "leukozyten"}}),
    "cork": (1450, {"CHF": 3, "COPD": 3}, {"missing": "-9"}),
    "dresden": (1100, dict.fromkeys(CANCER, 4), {"decimal": ",", "names": {"temp": "temperatur"}}),
    "evora": (900, {"Coma": 4, "MOSF w/Malig": 2}, {"missing": "?", "names": {"age": "idade"}}),
    "faro": (750, {"CHF": 4, "Cirrhosis": 3}, {"units": UMOL, "missing": "n/d"}),
    "graz": (500, {"COPD": 4, "Lung Cancer": 2}, {"decimal": ",", "missing": "-9"}),
    "hull": (200, {"Coma": 3, SEPSIS: 2}, {}),
}


def load() -> pd.DataFrame:
    """Return a row for each patient, with all columns that are named above."""
    from SurvSet.data import SurvLoader

    rows = SurvLoader().load_dataset("support2")["df"]
    rows.columns = [name.removeprefix("num_").removeprefix("fac_") for name in rows.columns]
    rows = rows.rename(columns={"time": "days", "event": "death", "hday": "hospital_days"})
    return rows.assign(died_60=((rows["death"] == 1) & (rows["days"] <= 60)).astype(int))
