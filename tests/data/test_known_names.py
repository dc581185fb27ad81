"""What names, spans, codes and units of hospitals mean."""

import tomllib
from importlib.resources import files

import pytest

from fedclust.data.known_names import (
    conversion,
    death_of,
    folded,
    is_absent_text,
    is_death,
    likeness,
    meanings_of,
    sex_of_one,
    split_unit,
    status_of,
)

WORDS = tomllib.loads(files("fedclust.data").joinpath("known_names.toml").read_text("utf-8"))


@pytest.mark.parametrize("part", ["measurements", "codes", "statuses"])
def test_a_word_that_is_sure_means_one_thing(part: str) -> None:
    """A name or a code of two things would be taken for one of them without a mark."""
    of: dict[str, set[str]] = {}
    for key, words in WORDS[part].items():
        for word in map(folded, (key, *words.split())):
            of.setdefault(word, set()).add(key)
    assert {word for word, keys in of.items() if len(keys) > 1 and not word.endswith("?")} == set()


@pytest.mark.parametrize(
    ("feature", "header", "score"),
    [
        ("sod", "Natrium (mmol/l)", 1),
        ("died_30", "Elhunyt 30 napon belül", 2),
        ("age", "Věk", 2),
        ("wbc", "Leukosyytit [E9/l]", 2),
        ("alb", "S-Albumin [g/L]", 2),
        ("sbp", "Ciśnienie skurczowe", 2),
        ("creatinine", "Serum creatinine, total", 2),
        ("creatinine", "urine creatinine", 1),
        ("sex", "Geschl", 1),
        ("heart_rate", "FC", 1),
        ("icu_days", "ICU days", 3),
        ("icu_days", "IVA-dygn", 2),
        ("afib", "FA", 1),
        ("alp", "FA", 0),
        ("chol", "creatinine", 0),
        ("statin", "Statinunverträglichkeit", 1),
        ("creatinine", "Kreatinin-Clearance", 0),
        ("albumin", "Albumin/Kreatinin-Ratio", 1),
        ("diabetes", "T2DM", 1),
        ("los", "LOS ICU", 1),
        ("sex", "Partner sex", 1),
        ("death_30", "Tod im Krankenhaus", 1),
        # An event within another time is another column.
        ("died_60", "verstorben 60 Tage", 2),
        ("died_60", "Overleden binnen 60 dagen", 2),
        ("death_365", "Décès à 1 an", 2),
        ("death_365", "verstorben_1J", 2),
        ("mortality_28", "Mort28d", 1),
        ("mortality_28", "death_d28", 2),
        ("death_12m", "1 yıl içinde ölüm", 2),
        ("readmit_30", "Rehospitalizacja 30 dni", 2),
        ("died_60", "verstorben 30 Tage", 0),
        ("death_365", "died within 30 days", 0),
        ("died_60", "verstorben", 1),
        ("died", "verstorben 60 Tage", 1),
        ("hba1c", "HbA1c (%)", 3),
        ("spo2", "SaO2", 1),
        ("nihss_admission", "NIHSS adm", 2),
        ("mrs_discharge", "mRS alta", 2),
        ("mrs_discharge", "mRS prévio", 0),
        ("mrs", "mRS bei Entl.", 1),
        ("prior_crp", "CRP post", 0),
        ("weight_before", "Gewicht vor", 1),
        ("death_30", "Tod nach 30 Tagen", 2),
        ("prior_mi", "Z. n. Herzinfarkt", 2),
        ("prior_stroke", "Antécédents AVC", 2),
        # A number of a name is no time, and neither is a square metre.
        ("phq_9_12m", "PHQ-9 12 Monate", 3),
        ("il6", "Interleukin-6", 2),
        ("ca_199", "CA 19-9 1 year", 1),
        ("vitamin_d", "25-OH vitamin D", 2),
        ("bmi_12m", "BMI kg/m2", 1),
        ("egfr", "DFG ml/min/1,73 m²", 2),
    ],
)
def test_how_well_a_header_fits(feature: str, header: str, score: int) -> None:
    assert likeness(feature, header) == score


def test_what_a_name_and_a_unit_say_of_codes() -> None:
    assert is_death("died_60")
    assert not is_death("readmit_30")
    said = {"1 = female": "female", "female = 1": "female", "0: female, 1: male": "male"}
    said |= {"1 is male": "male", "years": None, "": None, "1 = yes": None, "female": "female"}
    assert {unit: sex_of_one(unit) for unit in said} == said
    assert meanings_of(["M", "V"], "Geslacht") == {"M": "male", "V": "female"}
    assert meanings_of(["M", "V"], "Sexo") == {"M": "female", "V": "male"}
    assert meanings_of(["M", "V"], "sex") == {"M": None, "V": None}
    assert meanings_of(["H", "M"], "sex") == {"H": "male", "M": "female"}
    assert meanings_of(["hombre", "M"], "sex") == {"hombre": "male", "M": None}
    assert meanings_of(["männl.", "Weibl", "m.w."]) == {
        "männl.": "male", "Weibl": "female", "m.w.": None
    }  # fmt: skip
    assert meanings_of(["Férfi", "nő"]) == {"Férfi": "male", "nő": "female"}
    assert meanings_of(["Ano", "ne"]) == {"Ano": "yes", "ne": "no"}
    # Non évalué.
    assert meanings_of(["oui", "non", "NE"])["NE"] is None
    assert meanings_of(["ja", "nei"]) == {"ja": "yes", "nei": "no"}
    assert meanings_of(["T", "N", "-9"]) == {"T": "yes", "N": "no", "-9": None}
    smoking = {"Ex-Raucher": "former", "non-fumeur": "never", "w przeszłości": "former"}
    smoking |= {"fumeur actif": "current", "ja": None, "não fumador": "never"}
    smoking |= {"Före detta rökare": "former", "fumeur sevré": "former"}
    smoking |= {"current non-smoker": None, "nie mehr": None, "Z.n. 2012": "former"}
    smoking |= {"ex seit 2010": "former", "arrêté en 03/2015": "former", "nie seit 2010": None}
    assert {code: status_of(code) for code in smoking} == smoking


@pytest.mark.parametrize(
    ("feature", "header", "to", "wanted"),
    [
        ("sod", "Na (mEq/L)", "mmol/l", (1.0, 0.0)),
        ("calcium", "Ca (mEq/L)", "mmol/l", None),
        ("hb", "Hæmoglobin mmol/L", "g/dl", (1.6114, 0.0)),
        ("temp", "Temperatura (ºC)", "°C", (1.0, 0.0)),
        ("ascorbate", "Vitamin (C) [mg/dl]", "mg/l", (10.0, 0.0)),
        ("wbc", "GB (x10^3/µL)", "10^9/l", (1.0, 0.0)),
        ("testosterone", "Testosteron ng/dl", "nmol/l", (0.03467166, 0.0)),
        ("egfr", "DFG (mL/min/1,73 m²)", "ml/min/1.73m2", (1.0, 0.0)),
    ],
)
def test_units_of_headers(
    feature: str, header: str, to: str, wanted: tuple[float, float] | None
) -> None:
    found = conversion(feature, header, split_unit(header)[1], to)
    assert found == (wanted and pytest.approx(wanted))


#: A feature, and headers that are certainly it.
_TRAITS = """
chf: Herzinsuffizienz, Scompenso cardiaco cronico; stroke: Aivohalvaus; sleep_apnea: SAHOS
peripheral_artery_disease: pAVK; dialysis: Dialysepflichtig; statin: Statintherapie
ace_inhibitor: ACE-Hemmer, IECA; beta_blocker: Bêta-bloquants, ß-Blocker; opioids: Opiáceos
anticoagulation: Antistolling; antiplatelet: Thrombozytenaggregationshemmer; antibiotics: ATB
insulin_therapy: Insulinpflicht; steroids: Corticoïdes; physiotherapy: Kinésithérapie
transfusion: Bloedtransfusie; living_situation: Wohnsituation; smoking: Nikotin
marital_status: Burgerlijke staat; education: Niveau d'études; pack_years: Paquets-année
vascular_access: Gefäßzugang; primary_disease: Grunderkrankung; side: Seite; falls: Stürze
ward: Abteilung; relapse: Rezidiv; readmission_30: Heropname 30 dagen
complications: Powikłania; reoperation: Reintervención; diabetes: Comorbidity: diabetes
haq: HAQ-DI; tsat: Transferrinsättigung %; ggt: γ-GT [U/l]; alp: Phosphatases alcalines (UI/L)
esr: BSG 1h (mm); free_t4: freies T4; pregnancy: Gravidität; mmse: MMST; mrs_90: Rankin 90 Tage
crcl: Clairance de la créatinine; residual_diuresis: Restdiurese (ml/d); saps_ii: IGS II
ionized_calcium: Ca ionizzato; waist: Perímetro abdominal; handgrip: Fuerza de prensión (kg)
dry_weight: Trockengewicht (kg), Poids sec; fev1_pred: VEF1 % previsto
fev1_fvc: Tiffeneau (%); six_mwd: TM6 (m); spap: PAPsyst (mmHg); premorbid_mrs: Rankin previo
barthel_discharge: Barthel bei Entlassung; child_pugh: Child-Pugh-Stadium; ocm_ktv: Kt/V OCM
age_at_diagnosis: Edad al diagnóstico; dialysis_vintage: Tiempo en diálisis (meses)
uacr: Albumin/Kreatinin-Quotient [mg/g]; disease_duration: Krankheitsdauer [J.]
icu_days: Días en UCI; op_time: Operatieduur"""
#: Pairs of names that are near and may differ.
_NEAR = """
mi: Z.n. Herzinfarkt; stroke: TIA; stroke: Stroke/TIA; cancer: Metastasen; diabetes: GDM
hypertension: Pulmonale Hypertonie; ckd: Akutes Nierenversagen; alcohol: Alkoholabusus
insulin: Insulintherapie; steroids: inhalative Steroide; anticoagulation: Antiaggregante
antiplatelet: DAPT; doac: VKA; aspirin: ASA; ace_inhibitor: ACEi/ARB; ventilated: NIV
died: Krankenhausmortalität; died: Cause of death; falls: Anzahl Stürze; smoker: ancien fumeur
education: Years of education; dbp: PAD; diabetes: Family history of diabetes; falls: Fallnr
ocm_ktv: spKt/V; ektv: Kt/V; barthel_discharge: Barthel bei Aufnahme; barthel: Barthel Entlassung
sbp: SBP post; weight: Trockengewicht; fev1: FEV1 post; dlco: KCO; ft4: T4; calcium: Ca ionisiert
post_void_residual: Restdiurese; age: Alter bei Diagnose; pain_nrs: NRS 2002; hads_a: HADS-D
asa_class: ASA; los: ICU LOS; pci: ICP; chemotherapy: QT"""


def test_names_of_many_specialties_and_what_is_near_them() -> None:
    traits = [each.split(": ", 1) for each in _TRAITS.strip().replace("\n", "; ").split("; ")]
    pairs = [(feature, header) for feature, headers in traits for header in headers.split(", ")]
    assert [pair for pair in pairs if likeness(*pair) < 2] == []
    near = [each.split(": ") for each in _NEAR.strip().replace("\n", "; ").split("; ")]
    assert [(a, b) for a, b in near if max(likeness(a, b), likeness(b, a)) > 1] == []
    means = {"St.p.": "former", "Nie": "never", "fumeur occasionnel": "occasional", "li.": "left"}
    assert {code: status_of(code) for code in means} == means
    # In a column of smoking Ex is no death.
    assert [death_of(code) for code in ("Ex", "decedee", "überlebt")] == [None, 1, 0]
    assert all(map(is_absent_text, ["en attente", "nicht bestimmt", "Folgt", "ej utfört"]))
