//! Whether the guest cluster's API knows a join token.
//!
//! A bootstrap token does not tell when it ends: a Secret in the cluster does, which a worker may not read. So the
//! API is asked something with it. It answers 401 to a token it does not know, whatever the question.

use http::Request;
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::time::timeout;

use super::client::{CONNECT_TIMEOUT, REQUEST_TIMEOUT, root_cause};

/// What the API says to a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It knows it.
    Known,
    /// It does not; with what to do.
    Refused(String),
    /// It does not answer, or the token can't be used to ask; and why.
    Silent(String),
}

/// Asks with the token of a kubeconfig, given as text. Nothing of what the kubeconfig holds is in the answer, but the
/// server's address.
pub async fn ask(kubeconfig: &str) -> Answer {
    let unusable = || Answer::Silent("the join token can't be used to ask the API".to_owned());
    let Ok(kubeconfig) = Kubeconfig::from_yaml(kubeconfig) else {
        return unusable();
    };
    let options = KubeConfigOptions::default();
    let Ok(mut config) = Config::from_custom_kubeconfig(kubeconfig, &options).await else {
        return unusable();
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.default_retry = false;
    let url = config.cluster_url.to_string();
    let server = url.trim_end_matches('/');
    let Ok(client) = Client::try_from(config) else {
        return unusable();
    };
    let Ok(request) = Request::get("/version").body(Vec::new()) else {
        return unusable();
    };
    match timeout(REQUEST_TIMEOUT, client.request_text(request)).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 401 => Answer::Refused(format!(
            "{server} does not know the join token: it has expired, was deleted, or is of another cluster; this node \
             can't join until it gets a new one"
        )),
        // Who is told what he may not, or what is not there, is known. A server in trouble has looked at no token.
        Ok(Err(kube::Error::Api(status))) if status.code >= 500 => Answer::Silent(format!(
            "{server} answers {} to the join token",
            status.code
        )),
        Ok(Ok(_) | Err(kube::Error::Api(_))) => Answer::Known,
        Ok(Err(error)) => Answer::Silent(format!(
            "no answer from {server} to the join token: {}",
            root_cause(&error)
        )),
        Err(_) => Answer::Silent(format!(
            "no answer from {server} to the join token within {REQUEST_TIMEOUT:?}"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::testing::{self, Server};

    /// A bootstrap token that exists nowhere.
    const TOKEN: &str = "abcdef.0123456789abcdef";

    fn kubeconfig(server: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: k0s\n\
             clusters: [{{name: k0s, cluster: {{server: '{server}'}}}}]\n\
             contexts: [{{name: k0s, context: {{cluster: k0s, user: kubelet-bootstrap}}}}]\n\
             users: [{{name: kubelet-bootstrap, user: {{token: {TOKEN}}}}}]\n"
        )
    }

    #[tokio::test]
    async fn only_a_401_refuses() {
        for code in [200, 401, 403, 404, 503] {
            let answer = match code {
                200 => testing::Answer::Json(200, serde_json::json!({"gitVersion": "v1.37.2"})),
                code => testing::Answer::failure(code, "said no"),
            };
            let server = Server::start(vec![answer]).await;
            let said = ask(&kubeconfig(&format!("http://{}", server.address))).await;
            let is_expected = match code {
                401 => matches!(said, Answer::Refused(_)),
                503 => matches!(&said, Answer::Silent(why) if why.contains("503")),
                _ => said == Answer::Known,
            };
            assert!(is_expected, "{code}: {said:?}");
            assert!(!format!("{said:?}").contains(TOKEN), "{said:?}");
            assert_eq!(server.asked().len(), 1);
        }
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_silent() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let said = ask(&kubeconfig(&format!("http://{address}"))).await;
        let expected = format!(
            "no answer from http://{address} to the join token: Connection refused (os error 111)"
        );
        assert_eq!(said, Answer::Silent(expected));
        assert!(matches!(ask("}{").await, Answer::Silent(_)));
    }
}
