//! What is tried, in both roles.

mod access;
mod ending;
mod programs;
mod random;
mod startup;
mod transfer;

use std::fmt;

pub(super) use self::ending::{VICTIM, victim};
use super::{Lab, Result, pair::Role};

/// What a case does; what there is to say about it when it went well, perhaps nothing.
type Run = Box<dyn Fn(&mut Lab) -> Result<String>>;

/// One cell of the table.
pub(super) struct Case {
    pub(super) group: &'static str,
    pub(super) name: String,
    pub(super) role: Role,
    /// Part of the small subset.
    pub(super) smoke: bool,
    /// Means something only where TCP segments reach the guest as they were sent.
    pub(super) needs_segments: bool,
    /// Settings of siw that are not the defaults.
    pub(super) settings: &'static [(&'static str, &'static str)],
    pub(super) run: Run,
}

impl Case {
    fn new(
        group: &'static str,
        name: impl Into<String>,
        role: Role,
        run: impl Fn(&mut Lab) -> Result<String> + 'static,
    ) -> Self {
        let name = name.into();
        Self {
            group,
            name,
            role,
            smoke: false,
            needs_segments: false,
            settings: &[],
            run: Box::new(run),
        }
    }

    fn smoke(self) -> Self {
        Self { smoke: true, ..self }
    }

    fn needs_segments(self) -> Self {
        Self { needs_segments: true, ..self }
    }

    fn settings(self, settings: &'static [(&'static str, &'static str)]) -> Self {
        Self { settings, ..self }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::SiwConnects => "siw connects",
            Role::WeConnect => "we connect",
        };
        write!(f, "{}: {} [{role}]", self.group, self.name)
    }
}

/// All of them, in the order of the table.
pub(super) fn all() -> Vec<Case> {
    [
        startup::cases(),
        transfer::cases(),
        access::cases(),
        ending::cases(),
        random::cases(),
        programs::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn cases_have_names_of_their_own_and_stand_in_groups() {
        let all = all();
        let names: BTreeSet<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), all.len());
        let mut groups: Vec<&str> = all.iter().map(|case| case.group).collect();
        groups.dedup();
        assert_eq!(groups.iter().collect::<BTreeSet<_>>().len(), groups.len(), "{groups:?}");
    }
}
