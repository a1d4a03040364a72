//! The hosts of a gang, and what Open MPI has to be told about them. Pure but for [`Host::connect`].

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// As many as a job may have workers.
const HOSTS_MAX: usize = 4096;

/// A pod of the gang and where its worker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// What mpirun calls it. It need not be known to any DNS.
    pub name: String,
    /// An IP address or a name that resolves.
    pub address: String,
    pub port: u16,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HostsError {
    #[error("no hosts")]
    None,
    #[error("{0} hosts are more than {HOSTS_MAX}")]
    TooMany(usize),
    #[error("`{0}` is not of the form name=address:port")]
    Form(String),
    #[error("`{0}` is not a host name")]
    Name(String),
    #[error("the host {0} is there twice")]
    Twice(String),
}

impl Host {
    /// `name=address:port`; an IPv6 address stands in brackets.
    fn parse(text: &str) -> Result<Self, HostsError> {
        let form = || HostsError::Form(text.to_owned());
        let (name, rest) = text.split_once('=').ok_or_else(form)?;
        let (address, port) = rest.rsplit_once(':').ok_or_else(form)?;
        let address = match address.strip_prefix('[') {
            Some(address) => address.strip_suffix(']').ok_or_else(form)?,
            None if address.contains(':') => return Err(form()),
            None => address,
        };
        let port = port.parse().ok().filter(|port| *port > 0);
        if address.is_empty() {
            return Err(form());
        }
        // The name goes into a hostfile, where a blank or a `#` means something.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
        if name.is_empty() || !name.chars().all(plain) {
            return Err(HostsError::Name(name.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            address: address.to_owned(),
            port: port.ok_or_else(form)?,
        })
    }

    /// Tries every address the host's name resolves to.
    pub fn connect(&self, timeout: Duration) -> io::Result<TcpStream> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
        for address in (self.address.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

/// All hosts in rank order; the launcher's own is the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    pub hosts: Vec<Host>,
}

impl Gang {
    pub fn parse(text: &str) -> Result<Self, HostsError> {
        let hosts: Vec<Host> = text
            .split(',')
            .filter(|host| !host.is_empty())
            .map(Host::parse)
            .collect::<Result<_, _>>()?;
        if hosts.is_empty() {
            return Err(HostsError::None);
        }
        if hosts.len() > HOSTS_MAX {
            return Err(HostsError::TooMany(hosts.len()));
        }
        let mut seen = BTreeSet::new();
        if let Some(host) = hosts.iter().find(|host| !seen.insert(&host.name)) {
            return Err(HostsError::Twice(host.name.clone()));
        }
        Ok(Self { hosts })
    }

    pub fn find(&self, name: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.name == name)
    }

    /// Everyone but the launcher.
    pub fn workers(&self) -> &[Host] {
        self.hosts.get(1..).unwrap_or_default()
    }

    /// mpirun knows its own host by the name the kernel gives it, which is not the pod's where pods share the machine's.
    pub fn hostfile(&self, own_name: &str, slots: u32) -> String {
        let mut file = format!("{own_name} slots={slots}\n");
        for host in self.workers() {
            let _ = writeln!(file, "{} slots={slots}", host.name);
        }
        file
    }

    /// All pods use the network of one machine.
    fn shares_one_machine(&self) -> bool {
        let addresses: BTreeSet<&str> = self.hosts.iter().map(|h| h.address.as_str()).collect();
        let loopback = |address: &&str| {
            address
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
        };
        addresses.len() == 1 || addresses.iter().all(loopback)
    }

    /// What Open MPI is told, all of it through its environment, where what the job sets itself goes first. `agent` is
    /// what stands in for ssh; `cores` are those the launcher may use.
    pub fn settings(
        &self,
        agent: &str,
        hostfile: &str,
        processes: u32,
        cores: usize,
    ) -> Vec<(String, String)> {
        let rsh = [
            // Workers only answer the launcher, so it starts every daemon itself and stays attached to each:
            // a daemon that detaches could not be stopped, nor its output be read.
            ("plm_rsh_agent", agent.to_owned()),
            ("plm_rsh_no_tree_spawn", "1".to_owned()),
            ("plm_rsh_num_concurrent", self.hosts.len().to_string()),
            ("orte_leave_session_attached", "1".to_owned()),
            // Names are the pods' own. They are looked up nowhere, and a dot in one means nothing.
            ("orte_keep_fqdn_hostnames", "1".to_owned()),
            ("if_base_do_not_resolve", "1".to_owned()),
            ("orte_default_hostfile", hostfile.to_owned()),
            // The pod's share of the machine is the node's business: ranks are not bound, nor counted against cores.
            ("hwloc_base_binding_policy", "none".to_owned()),
            ("rmaps_base_oversubscribe", "1".to_owned()),
        ];
        let mut settings: Vec<(String, String)> = rsh
            .into_iter()
            .map(|(name, value)| (format!("OMPI_MCA_{name}"), value))
            .collect();
        let mut set = |name: &str, value: &str| settings.push((name.to_owned(), value.to_owned()));
        // Open MPI 5 has another runtime, with names of its own.
        set("PRTE_MCA_plm_ssh_agent", agent);
        set("PRTE_MCA_plm_ssh_no_tree_spawn", "1");
        set(
            "PRTE_MCA_plm_ssh_num_concurrent",
            &self.hosts.len().to_string(),
        );
        set("PRTE_MCA_prte_leave_session_attached", "1");
        set("PRTE_MCA_prte_keep_fqdn_hostnames", "1");
        set("PRTE_MCA_prte_default_hostfile", hostfile);
        set("PRTE_MCA_hwloc_default_binding_policy", "none");
        set(
            "PRTE_MCA_rmaps_default_mapping_policy",
            "slot:oversubscribe",
        );
        // A pod's user is a matter of its template, not of mpirun.
        for runtime in ["OMPI", "PRTE"] {
            set(&format!("{runtime}_ALLOW_RUN_AS_ROOT"), "1");
            set(&format!("{runtime}_ALLOW_RUN_AS_ROOT_CONFIRM"), "1");
        }
        if self.shares_one_machine() {
            // Bridges, VPNs and a Wi-Fi that comes and goes are no way from a machine to itself. (The runtime of Open
            // MPI 5 takes loopback only where it finds nothing else, so it is left alone.)
            set("OMPI_MCA_oob_tcp_if_include", "lo");
            set("OMPI_MCA_btl_tcp_if_include", "lo");
            // Each host counts its own ranks only. Together they may be more than there are cores, and a rank that
            // waits by spinning then takes the core from the one it waits for.
            if processes as usize > cores {
                set("OMPI_MCA_mpi_yield_when_idle", "1");
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_in_order() {
        let gang =
            Gang::parse("lm-0=127.0.0.1:7001,lm-1=[::1]:7002,lm-2=lm-2.lm.team.svc:7003,").unwrap();
        let read: Vec<_> = gang
            .hosts
            .iter()
            .map(|host| (host.name.as_str(), host.address.as_str(), host.port))
            .collect();
        assert_eq!(
            read,
            [
                ("lm-0", "127.0.0.1", 7001),
                ("lm-1", "::1", 7002),
                ("lm-2", "lm-2.lm.team.svc", 7003)
            ]
        );
        assert_eq!(gang.workers().len(), 2);
        assert_eq!(gang.find("lm-1").unwrap().port, 7002);
        assert_eq!(gang.find("lm-9"), None);
    }

    #[test]
    fn what_is_not_a_list_of_hosts_is_refused() {
        let form = |text: &str| HostsError::Form(text.to_owned());
        let table = [
            ("", HostsError::None),
            (",,", HostsError::None),
            ("a", form("a")),
            ("a=b", form("a=b")),
            ("a=:7001", form("a=:7001")),
            ("a=b:0", form("a=b:0")),
            ("a=b:70000", form("a=b:70000")),
            ("a=::1:7001", form("a=::1:7001")),
            ("a=[::1:7001", form("a=[::1:7001")),
            ("=b:7001", HostsError::Name(String::new())),
            ("a b=c:7001", HostsError::Name("a b".to_owned())),
            ("a#=c:7001", HostsError::Name("a#".to_owned())),
            ("a=b:1,a=c:2", HostsError::Twice("a".to_owned())),
        ];
        for (text, error) in table {
            assert_eq!(Gang::parse(text), Err(error), "{text}");
        }
        let many = vec!["a=b:1"; HOSTS_MAX + 1].join(",");
        assert_eq!(Gang::parse(&many), Err(HostsError::TooMany(HOSTS_MAX + 1)));
    }

    #[test]
    fn the_launcher_goes_by_the_name_its_kernel_gives_it() {
        let gang = Gang::parse("lm-0=10.0.0.1:7001,lm-1=10.0.0.2:7001").unwrap();
        insta::assert_snapshot!(gang.hostfile("workstation", 2), @r"
        workstation slots=2
        lm-1 slots=2
        ");
    }

    fn said(hosts: &str, processes: u32) -> Vec<String> {
        Gang::parse(hosts)
            .unwrap()
            .settings("/x/stoke mpi rsh", "/x/hosts", processes, 2)
            .into_iter()
            .filter(|(name, _)| name.contains("if_include") || name.contains("yield"))
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }

    #[test]
    fn on_one_machine_traffic_stays_on_it_and_waiting_ranks_give_way() {
        let lo = [
            "OMPI_MCA_oob_tcp_if_include=lo",
            "OMPI_MCA_btl_tcp_if_include=lo",
        ];
        let yielding = [lo.as_slice(), &["OMPI_MCA_mpi_yield_when_idle=1"]].concat();
        assert_eq!(said("a=127.0.0.1:1,b=127.0.0.2:2", 2), lo);
        assert_eq!(said("a=192.0.2.7:1,b=192.0.2.7:2", 4), yielding);
        assert_eq!(said("a=192.0.2.7:1,b=192.0.2.8:1", 4), [] as [&str; 0]);
    }
}
